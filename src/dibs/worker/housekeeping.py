"""What some worker has to do now and then: free jobs whose worker has no row, make partitions, forget what is past its
time. Every worker does it at a time of its own; twice does no harm."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import NamedTuple

from dibs.engines.engine import Engine
from dibs.errors import DibsError
from dibs.operations import retention, workers

log = logging.getLogger("dibs")

EVERY = 600.0
STEPS = 100  # of deleting, in one go


class Kept(NamedTuple):
    """How many jobs were freed because their worker has vanished, and how many were deleted because their time is over:
    not those of PostgreSQL's history, of which whole days go at once."""

    freed: int
    forgotten: int


class Housekeeping:
    """Runs until cancelled."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def run(self) -> None:
        """Pace `run_once`."""
        while True:
            await asyncio.sleep(EVERY * random.uniform(0.5, 1.5))
            try:
                await self.run_once()
            except DibsError as error:
                log.warning("Housekeeping failed, and is tried again later: %s", error)

    async def run_once(self) -> Kept:
        """All of it, and what it came to."""
        freed = await self.engine.arun(workers.recover_orphans())
        if freed:
            log.warning("Freed %d jobs whose worker has vanished", freed)
        await self.engine.arun(retention.partitions())
        await self.engine.arun(retention.lapsed())
        for _ in range(STEPS):
            if not await self.engine.arun(retention.old_ones()):
                break
        for _ in range(STEPS):
            if not await self.engine.arun(retention.old_batches()):
                break
        forgotten = 0
        for _ in range(STEPS):
            old = await self.engine.arun(retention.expired_history())
            dead = await self.engine.arun(retention.expired_dead())
            if not old and not dead:
                break
            forgotten += await self.engine.arun(retention.forget_history(old))
            forgotten += await self.engine.arun(retention.forget_dead(dead))
        return Kept(freed, forgotten)
