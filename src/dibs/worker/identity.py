"""Who a worker is: a name that is new at every boot, and a random number that stands for it in the tables."""

from __future__ import annotations

import os
import secrets
import socket
import time

from dibs.engines.engine import Engine
from dibs.job import WorkerId
from dibs.operations import workers


def new_name() -> str:
    """Host, process, start time and chance, so that no two workers are ever taken for one another."""
    host = socket.gethostname().split(".")[0] or "host"
    return f"{host}-{os.getpid()}-{int(time.time() * 1000)}-{secrets.token_hex(3)}"


async def enlist(engine: Engine, name: str, *, lease: float, beat: float) -> WorkerId:
    """Enter a worker under a number that nobody has."""
    while True:
        number = secrets.randbits(workers.NUMBER_BITS)
        if await engine.arun(workers.enlist(number, name, lease=lease, beat=beat)):
            return WorkerId(number)
