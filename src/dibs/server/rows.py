"""Rows of adopted tables, to those who watch them by table and key: the state of the row's job, or of the row itself.

Nobody tells of a row that has no job. So all that are watched are read again, in one statement for each table: soon
after anything is heard of, and after a second in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from dibs.app import Dibs
from dibs.errors import DibsError, InvalidPayload, NotAdoptable, Refused
from dibs.job import JobState
from dibs.operations import adopted, watching
from dibs.operations.adopted import Glimpse, Source
from dibs.operations.rows import Seen
from dibs.server.hub import READ, Hub
from dibs.server.problems import Refusal

log = logging.getLogger("dibs")

GATHER = 0.02  # seconds in which changes are collected, to be read together
EVERY = 1.0  # seconds after which rows are read again, whatever was heard
SHARE = 4  # so many times as long as a reading took, others have the database


class RowName(NamedTuple):
    """A row as somebody names it: the table, and the parts of its key."""

    table: str
    key: tuple[Any, ...]

    def __str__(self) -> str:
        return adopted.printable(f"{', '.join(map(str, self.key))} of {self.table}")


def row_name(table: str, key: Any) -> RowName:
    """By what somebody says: one part of a key, or a list of all.

    >>> str(row_name("stickers", 7)), str(row_name("lines", [7, "b"]))
    ('7 of stickers', '7, b of lines')
    """
    return RowName(table, tuple(key) if isinstance(key, list) else (key,))


class RowSeen(NamedTuple):
    """A row as it was when somebody looked. Without a job its state is that of the row itself."""

    state: JobState
    job: int | None = None
    attempts: int = 0
    error: str | None = None
    version: int | None = None
    progress: Any = None


class RowWatcher(Protocol):
    """Somebody who is told. Neither call may wait."""

    def tell_row(self, row: RowName, seen: RowSeen) -> None:
        """A row that it watches is like this; perhaps as it was told before."""

    def tell_trouble(self, row: RowName, code: str, message: str) -> None:
        """A row that it watches is not there any more, or cannot be understood."""


class Rows:
    """Who watches which rows."""

    def __init__(self, app: Dibs, hub: Hub) -> None:
        self.app, self.hub = app, hub
        self.watched: dict[RowName, set[RowWatcher]] = {}
        self.sources: dict[str, Source] = {}
        self.jobs: dict[RowName, int] = {}  # the last that each was seen with
        self.last: dict[RowName, RowSeen] = {}
        self.asked: dict[RowName, set[RowWatcher]] = {}  # those who have just come
        self.some = asyncio.Event()
        self.running: asyncio.Task[None] | None = None

    async def find(self, table: str, key: Any) -> RowName:
        """A row that is there, by what somebody says; a Refusal says why there is none."""
        name = row_name(table, key)
        known = self.app.adopted.get(table)
        if known is None:
            raise Refusal(404, "table_not_found", f"No table is adopted here by the name {adopted.printable(table)}.")
        if len(name.key) != len(known.adoption.key):
            columns = ", ".join(known.adoption.key)
            raise Refusal(400, "invalid_key", f"A key of {table} has {len(known.adoption.key)} parts: {columns}.")
        try:
            found = await self._read(table, [name])
        except NotAdoptable as error:
            raise Refusal(409, "table_unavailable", str(error)) from error
        except (Refused, InvalidPayload) as error:
            raise Refusal(400, "invalid_key", f"That cannot be a key of {table}: {error}") from error
        if not found:
            raise Refusal(404, "row_not_found", f"There is no row {name}.")
        return name

    def watch(self, watcher: RowWatcher, name: RowName) -> None:
        """Tell this one of a row: how it is now, and whenever it changes."""
        self.watched.setdefault(name, set()).add(watcher)
        self.asked.setdefault(name, set()).add(watcher)
        self.some.set()
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self.run(), name="rows")

    def unwatch(self, watcher: RowWatcher, name: RowName) -> None:
        """No more."""
        watchers = self.watched.get(name, set())
        watchers.discard(watcher)
        if not watchers:
            for known in (self.watched, self.jobs, self.last, self.asked):
                known.pop(name, None)

    async def aclose(self) -> None:
        """Stop."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

    async def run(self) -> None:
        """Read and tell, as long as anybody watches."""
        clock = asyncio.get_running_loop().time
        with self.hub.listening(events=True) as stirred:
            while self.watched:
                began = clock()
                for table in {name.table for name in self.watched}:
                    await self._tell(table)
                await asyncio.sleep(max(GATHER, SHARE * (clock() - began)))
                await _either(self.some, stirred)

    async def _tell(self, table: str) -> None:
        names = [name for name in self.watched if name.table == table]
        try:
            for at in range(0, len(names), READ):
                await self._tell_some(table, names[at : at + READ])
        except DibsError as error:
            self.sources.pop(table, None)  # it may have changed
            log.warning("Rows of %s cannot be watched for now: %s", table, error)

    async def _tell_some(self, table: str, names: Sequence[RowName]) -> None:
        found = await self._read(table, names)
        seen = await self._jobs_of(table, found)
        for name in names:
            glimpse = found.get(name)
            if glimpse is None:
                self._trouble(name, "row_not_found", f"There is no row {name} any more.")
                continue
            now = self._seen(name, glimpse, seen)
            if now is None:
                word = adopted.printable(str(glimpse.word))
                self._trouble(name, "unknown_status", f"Row {name} says {word!r}, which is none of its words.")
                continue
            new = self.asked.pop(name, set())
            for watcher in self.watched.get(name, ()) if self.last.get(name) != now else new:
                watcher.tell_row(name, now)
            self.last[name] = now

    def _trouble(self, name: RowName, code: str, message: str) -> None:
        for watcher in [*self.watched.get(name, ())]:
            watcher.tell_trouble(name, code, message)

    async def _read(self, table: str, names: Sequence[RowName]) -> dict[RowName, Glimpse]:
        engine = self.app.engine
        if table not in self.sources:
            self.sources[table] = await self.app.adopted[table].asource(engine)
        found = await engine.arun_once(adopted.glimpse(self.sources[table], [name.key for name in names]))
        return {names[glimpse.number]: glimpse for glimpse in found}

    async def _jobs_of(self, table: str, found: dict[RowName, Glimpse]) -> dict[int, Seen]:
        """The jobs that these rows have, or were last seen with. One that came and went unseen is among the newest."""
        self.jobs.update({name: glimpse.job for name, glimpse in found.items() if glimpse.job is not None})
        ended = [name for name in found if name not in self.jobs and self._of_row(name, found[name], ends=True)]
        if ended and any(name not in self.last or not self.last[name].state.final for name in ended):
            known = await self.app.engine.arun_once(adopted.ended(self.sources[table]))
            self.jobs.update({name: known[key] for name in ended if (key := found[name].key) in known})
        ids = [self.jobs[name] for name in found if name in self.jobs]
        return {seen.id: seen for seen in await self.app.engine.arun_once(watching.look(ids))} if ids else {}

    def _seen(self, name: RowName, glimpse: Glimpse, jobs: dict[int, Seen]) -> RowSeen | None:
        """As its job is; but if that has ended and the row says something else, as the row is."""
        own = self._of_row(name, glimpse)
        job = jobs.get(self.jobs.get(name, 0))
        if job is None or (glimpse.job is None and (own is None or job.state is not own.state)):
            return own
        return RowSeen(job.state, job.id, job.attempts, job.error, job.version, job.progress)

    def _of_row(self, name: RowName, glimpse: Glimpse, *, ends: bool = False) -> RowSeen | None:
        words = self.app.adopted[name.table].adoption.words
        said = str(glimpse.word).strip()
        state = next((state for state, word in words.items() if str(word).strip() == said), None)
        if state is None or (ends and not state.final):
            return None
        return RowSeen(state, attempts=glimpse.attempts, error=glimpse.error)


async def _either(*events: asyncio.Event) -> None:
    """Until one of them is set, or for a while."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERY):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        for event in events:
            event.clear()
