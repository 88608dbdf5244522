"""What jobs came to, counted by queue and minute for those who look at it later: added to the database now and then,
never in a job's way. What a killed worker had not added yet is not counted."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from dibs.engines.engine import Engine
from dibs.errors import DibsError, OutcomeUnknown
from dibs.job import JobState
from dibs.lifecycle import Back, Change, Done, Way
from dibs.operations import stats

log = logging.getLogger("dibs")

EVERY = 10.0  # seconds between additions


class Tallies:
    """Counts, and adds what was counted."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.counted: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def count(self, queue: str, change: Change, number: int = 1) -> None:
        """So many jobs came to this. What was handed back came to nothing."""
        match change:
            case Done(state=JobState.SUCCESSFUL):
                self.counted[queue][0] += number
            case Done():
                self.counted[queue][1] += number
            case Back(way=Way.RETRY | Way.FINISH):
                self.counted[queue][2] += number

    async def run(self) -> None:
        """Pace `run_once`."""
        while True:
            await asyncio.sleep(EVERY)
            await self.run_once()

    async def run_once(self) -> None:
        """Add what was counted, or keep it for the next time. What may have been added is let go: rather too few
        than some of them twice."""
        counted = dict(self.counted)
        if not counted:
            return
        self.counted.clear()
        try:
            await self.engine.arun(stats.add([(queue, *numbers) for queue, numbers in counted.items()]))
        except OutcomeUnknown as error:
            log.info("What was counted may be missing in the statistics: %s", error)
        except DibsError as error:
            log.info("What was counted is added to the statistics later: %s", error)
            for queue, numbers in counted.items():
                self.counted[queue] = [sum(both) for both in zip(self.counted[queue], numbers, strict=True)]
