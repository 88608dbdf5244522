"""Who holds jobs for long that have not begun asks whether others have nothing to do, and whether their queue is
paused; who has nothing to do says so at once, and not only with the next beat.

Where no number of jobs to hold is given, nothing is held for so long and nobody asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dibs.engines.engine import Engine
from dibs.errors import DibsError
from dibs.job import Claimed, WorkerId
from dibs.operations import holding
from dibs.worker.buffer import TOO_LONG, Buffer

log = logging.getLogger("dibs")


@dataclass(slots=True)
class Holding:
    """Hands back what should not be held."""

    engine: Engine
    buffer: Buffer
    rows: Callable[[], Sequence[WorkerId]]
    hand_back: Callable[[Iterable[Claimed]], Any]
    asked: bool = True  # it is known that we could claim more
    long: asyncio.Event = field(default_factory=asyncio.Event)  # something is held, and was for a while
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # there was not enough to claim

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._paced(self.long, self.let_go), name="let go")
            group.create_task(self._paced(self.idle, self.ask), name="ask")

    async def _paced(self, event: asyncio.Event, act: Callable[[], Any]) -> None:
        while True:
            await event.wait()
            event.clear()
            try:
                await act()
            except DibsError as error:
                log.info("Whether jobs may be held is not known: %s", error)
            await asyncio.sleep(TOO_LONG / 2)

    async def let_go(self) -> None:
        """What others could start, and what nobody should."""
        reasons = await self.engine.arun(holding.reasons(self.rows()))
        now = time.monotonic()
        self.hand_back(self.buffer.hand_back(reasons.paused))
        if reasons.others_ask:
            self.buffer.share(now)
            if self.buffer.overdue(now):
                self.hand_back(self.buffer.hand_back())

    async def ask(self) -> None:
        """Unless it is known already."""
        if not self.asked:
            self.asked = True
            await self.engine.arun(holding.ask(self.rows()))
