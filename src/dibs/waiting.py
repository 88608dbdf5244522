"""Waiting for a job to be final, or a batch to be finished: short pauses at first, a quarter of a second in the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from dibs.batch import BatchProgress
from dibs.errors import JoinTimeout
from dibs.job import Job

FIRST, LONGEST = 0.005, 0.25


class Wait:
    """How long to pause before the next look; raises when the time is up."""

    def __init__(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout, self.clock = timeout, clock
        self.until = float("inf") if timeout is None else clock() + timeout
        self.next = FIRST

    def pause(self, job: Job | BatchProgress) -> float:
        """Seconds, since it is not done yet."""
        left = self.until - self.clock()
        if left <= 0:
            what = "Job" if isinstance(job, Job) else "Batch"
            raise JoinTimeout(job.id, job.state, self.timeout or 0.0, what=what)
        pause, self.next = min(self.next, left), min(1.5 * self.next, LONGEST)
        return pause
