"""A job that runs now, as a worker or a drain keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from dibs.context import CurrentJob
from dibs.job import Claimed
from dibs.lifecycle import Committed, Outcome, Released
from dibs.task import Declared

HANDED_BACK = Released()


@dataclass(slots=True)
class Running:
    """One attempt."""

    job: Claimed
    task: Declared
    current: CurrentJob
    began: float
    future: asyncio.Task[Any] = field(init=False)
    lost: bool = False  # it is no longer ours, and we know
    outcome: Outcome | Committed = HANDED_BACK  # to a drain; until it is known
