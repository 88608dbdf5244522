"""A job that runs now, as a worker or a drain keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from dibs.context import CurrentJob
from dibs.job import Claimed
from dibs.task import Declared


@dataclass(slots=True)
class Running:
    """One attempt."""

    job: Claimed
    task: Declared
    current: CurrentJob
    began: float
    future: asyncio.Task[Any] = field(init=False)
    lost: bool = False  # it is no longer ours, and we know
