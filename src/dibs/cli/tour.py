"""The tasks that `dibs demo` runs. Its workers find them as dibs.cli.tour:app, on the database of DIBS_URL."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from dibs.app import Dibs
from dibs.calls import Task
from dibs.context import current_job

STEP = 0.1  # seconds


async def _work(seconds: float) -> None:
    """Something that takes its time, and says how far it is and who does it."""
    steps = round(seconds / STEP)
    for step in range(steps):
        current_job().progress(step, steps, f"process {os.getpid()}")
        await asyncio.sleep(STEP)
    current_job().progress(steps, steps, f"process {os.getpid()}")


def declare(app: Dibs) -> tuple[Task[..., Any], Task[..., Any], Task[..., Any]]:
    """One that goes well, one that fails the first time, and one whose worker will be killed."""

    @app.task(name="resize")
    async def resize(image: int, seconds: float) -> str:
        await _work(seconds)
        return f"image {image} is small now"

    @app.task(name="mail", retry=1.0)
    async def mail(to: str) -> str:
        await _work(1.0)
        if current_job().attempt == 1:
            raise ConnectionError("the mail server is away")
        return f"mailed {to}"

    @app.task(name="charge")
    async def charge(account: str, cents: int) -> None:
        await _work(5.0)
        async with current_job().transaction() as connection:
            await connection.execute("insert into charges values (?, ?)", [account, cents])
            current_job().result = {"charged": cents}

    return resize, mail, charge


def __getattr__(name: str) -> Dibs:
    """`app` is made when a worker asks for it."""
    if name != "app":
        raise AttributeError(name)
    app = Dibs()
    declare(app)
    return app
