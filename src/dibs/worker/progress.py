"""Progress that tasks report: written a little later, the last word of each job only, never in the task's way."""

from __future__ import annotations

import asyncio
import logging
import threading

from dibs.engines.engine import Engine
from dibs.errors import DibsError, LeaseLost
from dibs.job import Lease
from dibs.operations import jobs

log = logging.getLogger("dibs")

EVERY = 0.1  # seconds between writes


class Progress:
    """What was reported last, for each job, until it is written."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self.loop, self.thread = engine, loop, threading.get_ident()
        self.latest: dict[Lease, bytes] = {}
        self.writing: Lease | None = None
        self.some, self.one_by_one = asyncio.Event(), asyncio.Lock()

    def tell(self, lease: Lease, document: bytes) -> None:
        """From a task, in whatever thread."""
        if threading.get_ident() == self.thread:
            self._note(lease, document)
        else:
            self.loop.call_soon_threadsafe(self._note, lease, document)

    def pending(self, lease: Lease) -> bool:
        """Whether something of this job is not stored yet."""
        return lease in self.latest or lease == self.writing

    async def run(self) -> None:
        """Pace `run_once`."""
        while True:
            await self.some.wait()
            self.some.clear()
            await self.run_once()
            await asyncio.sleep(EVERY)

    async def run_once(self) -> None:
        """Write what there is."""
        while self.latest:
            await self.flush(next(iter(self.latest)))

    async def flush(self, lease: Lease) -> None:
        """Write the last word of one job, if there is one."""
        async with self.one_by_one:  # or an earlier word could arrive last
            document = self.latest.pop(lease, None)
            if document is None:
                return
            self.writing = lease
            try:
                await self.engine.arun(jobs.progress(lease, document))
            except LeaseLost:
                return  # its task learns it by other ways
            except DibsError as error:
                log.warning("The progress of job %s was not stored: %s", lease.job_id, error)
            finally:
                self.writing = None

    def _note(self, lease: Lease, document: bytes) -> None:
        self.latest[lease] = document
        self.some.set()
