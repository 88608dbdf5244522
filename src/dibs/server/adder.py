"""Adds in one transaction what arrives together.

A commit waits for the disk, and on PostgreSQL those that wake a worker wait for one another. So one is under way at a
time, and whoever comes meanwhile goes into the next: alone, a request waits for nobody; in a crowd, one wait does for
all.
"""

from __future__ import annotations

import asyncio

from dibs.app import Dibs
from dibs.errors import Refused
from dibs.job import Job, NewJob
from dibs.operations import jobs
from dibs.operations.jobs import CHUNK_BYTES, CHUNK_ROWS, Added


class Adder:
    """What waits to be added, and the one who adds it."""

    def __init__(self, app: Dibs) -> None:
        self._app = app
        self._waiting: list[tuple[NewJob, asyncio.Future[Added]]] = []
        self._adding: asyncio.Task[None] | None = None

    async def add(self, job: NewJob) -> Job:
        """One job; it is committed when this returns."""
        if job.unique_key is not None:
            return await self._app.aadd(job)
        answer: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, answer))
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_all())
        return jobs.new_job_snapshot(job, await answer, self._app)

    async def _add_all(self) -> None:
        try:
            while self._waiting:
                await self._add(self._next())
        finally:
            self._adding = None

    def _next(self) -> list[tuple[NewJob, asyncio.Future[Added]]]:
        """Those who came first, up to a size."""
        size = count = 0
        while count < min(len(self._waiting), CHUNK_ROWS) and size < CHUNK_BYTES:
            size += len(self._waiting[count][0].payload or b"")
            count += 1
        chosen, self._waiting = self._waiting[:count], self._waiting[count:]
        return chosen

    async def _add(self, chosen: list[tuple[NewJob, asyncio.Future[Added]]]) -> None:
        try:
            added = await self._app.engine.arun(jobs.add_each([job for job, _ in chosen]))
        except Refused as error:
            if len(chosen) == 1:
                _fail(chosen[0][1], error)
                return
            for one in chosen:  # the database does not like one of them: nobody else's business
                await self._add([one])
        except Exception as error:  # each of them asked, so each is told
            for _, answer in chosen:
                _fail(answer, error)
        else:
            for (_, answer), one_added in zip(chosen, added, strict=True):
                if not answer.done():  # else whoever asked has gone
                    answer.set_result(one_added)


def _fail(answer: asyncio.Future[Added], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
