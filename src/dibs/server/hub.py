"""Events in: hears which jobs have changed, looks at them again, and tells everyone who watches them.

A notification carries identity, never state: the row is read again, and what is told is what was read. So a lost
notification loses nothing: a slow look underneath finds it, and so does the look after each loss of the connection.
Versions only grow: of a job that changed twice between two looks, the last state is told, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from dibs.batch import BatchProgress
from dibs.engines.engine import Engine, Hint
from dibs.errors import DibsError
from dibs.operations import batches, watching
from dibs.operations.rows import Seen

log = logging.getLogger("dibs")

GATHER = 0.005  # seconds in which changes are collected, to be read together
READ = 1_000  # ids in one statement
COUNTED = 0.25  # seconds between looks at batches: their counts change with every job
UNHEARD = 0.25  # seconds between looks where nobody can tell us
AGAIN, AT_MOST, WELL = 0.25, 2.0, 10.0  # seconds before going on after a failure; after which all is well again
KNOWN = 10_000  # jobs of watched queues that are remembered
OVERLAP = 1_000  # ids below the newest one: their transactions may have committed later
COMERS = 20  # who begin to watch a queue and are told of it in one go, before others have their turn
BREATH = 20  # jobs told of, before those who are told have their turn
FIRST = 100  # jobs that who begins to watch a queue is told of at once
EVENTS, WAKE = "job_events", "dibs_wake"


class Watcher(Protocol):
    """Somebody who is told. Neither call may wait."""

    def tell(self, seen: Seen) -> None:
        """A job that it watches is like this; perhaps as it was told before."""

    def missing(self, job_id: int) -> None:
        """A job that it wants to watch is not there."""


class BatchWatcher(Protocol):
    """Somebody who is told of batches. Neither call may wait."""

    def tell_batch(self, progress: BatchProgress) -> None:
        """A batch that it watches is like this; perhaps as it was told before."""

    def missing_batch(self, batch_id: int) -> None:
        """A batch that it wants to watch is not there."""


class Changed(msgspec.Struct):
    """What a notification says."""

    job_id: int | None = msgspec.field(name="jobId", default=None)
    job_ids: list[int] = msgspec.field(name="jobIds", default_factory=list)


decode_changed = msgspec.json.Decoder(Changed).decode


class Hub:
    """Who watches what, and what has to be read for them."""

    def __init__(self, engine: Engine, look: float) -> None:
        self.engine, self.look_every = engine, look
        self.jobs: dict[int, set[Watcher]] = {}
        self.queues: dict[str, set[Watcher]] = {}
        self.everything: set[Watcher] = set()
        self.batches: dict[int, set[BatchWatcher]] = {}
        self.counts = asyncio.Event()  # those of batches may have changed
        self.changed: set[int] = set()  # to be read
        self.asked: dict[int, set[Watcher]] = {}  # to be read for those who have just come
        self.came: dict[tuple[Watcher, str | None], None] = {}  # to watch a queue, in order
        self.known: OrderedDict[int, bool] = OrderedDict()  # of watched queues; whether that state was final
        self.newest: int | None = None
        self.added = False  # there may be jobs that nobody has seen yet
        self.some = asyncio.Event()
        self.woken: set[asyncio.Event] = set()
        self.stirred: set[asyncio.Event] = set()
        self.running: asyncio.Task[None] | None = None

    # Who watches what

    def watch(self, watcher: Watcher, job_id: int) -> None:
        """Tell this one of a job: how it is now, and whenever it changes."""
        self.jobs.setdefault(job_id, set()).add(watcher)
        self.asked.setdefault(job_id, set()).add(watcher)
        self._begin()

    def unwatch(self, watcher: Watcher, job_id: int) -> None:
        """No more."""
        _without(self.jobs, job_id, watcher)
        _without(self.asked, job_id, watcher)

    def watch_queue(self, watcher: Watcher, queue: str | None) -> None:
        """Tell this one of every job of a queue (None: of all): the newest now, and whenever one changes."""
        if queue is None:
            self.everything.add(watcher)
        else:
            self.queues.setdefault(queue, set()).add(watcher)
        self.came[watcher, queue] = None
        self._begin()

    def unwatch_queue(self, watcher: Watcher, queue: str | None) -> None:
        """No more."""
        self.came.pop((watcher, queue), None)
        if queue is None:
            self.everything.discard(watcher)
        else:
            _without(self.queues, queue, watcher)
        if not self._watches_queues():
            self.known.clear()
            self.newest = None

    def watch_batch(self, watcher: BatchWatcher, batch_id: int) -> None:
        """Tell this one of a batch: how far it is now, and whenever that changes."""
        self.batches.setdefault(batch_id, set()).add(watcher)
        self.counts.set()
        self._begin()

    def unwatch_batch(self, watcher: BatchWatcher, batch_id: int) -> None:
        """No more."""
        _without(self.batches, batch_id, watcher)

    @contextmanager
    def listening(self, *, events: bool = False) -> Iterator[asyncio.Event]:
        """An event that is set whenever something may have changed in the database: been added, or anything at all."""
        event, those = asyncio.Event(), self.stirred if events else self.woken
        those.add(event)
        self._begin()
        try:
            yield event
        finally:
            those.discard(event)

    # Reading

    def _begin(self) -> None:
        self.some.set()
        if self.running is None or self.running.done():
            self.running = asyncio.create_task(self.run(), name="hub")

    async def aclose(self) -> None:
        """Stop."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

    async def run(self) -> None:
        """Listen, look and tell, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.engine.can.listens:
                group.create_task(self._for_ever(self._listen), name="hub listens")
            group.create_task(self._for_ever(self._look), name="hub looks")
            group.create_task(self._for_ever(self._tell), name="hub tells")
            group.create_task(self._for_ever(self._count), name="hub counts")

    async def _for_ever(self, act: Callable[[], Awaitable[None]]) -> None:
        """Again and again, whatever goes wrong: who watches depends on it, and would never know. Slower each time."""
        pause = AGAIN
        while True:
            began = time.monotonic()
            try:
                await act()
            except DibsError as error:
                log.warning("Watching jobs failed, and goes on: %s", error)
            except Exception:
                log.exception("Watching jobs failed, and goes on")
            pause = AGAIN if time.monotonic() - began > WELL else min(2 * pause, AT_MOST)
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        async with self.engine.listen(EVENTS, WAKE) as hints:
            self._read_all()  # what was said while nobody listened
            async for hint in hints:
                self._heard(hint)

    def _heard(self, hint: Hint) -> None:
        self.counts.set()
        for event in self.stirred:
            event.set()
        if hint.channel == EVENTS:
            self._note(_ids(hint.payload))
            return
        for event in self.woken:
            event.set()
        if hint.payload:
            self.added = True
            self.some.set()
        else:  # a file: something in it has changed
            self._read_all()

    def _note(self, ids: Iterable[int]) -> None:
        self.changed.update(ids if self._watches_queues() else self.jobs.keys() & set(ids))
        if self.changed:
            self.some.set()

    def _read_all(self) -> None:
        """Whatever is watched may have changed."""
        self.changed.update(self.jobs)
        self.changed.update(job_id for job_id, final in self.known.items() if not final)
        self.added = True
        self.some.set()
        self.counts.set()

    async def _look(self) -> None:
        """In any case: notifications can be lost."""
        while True:
            await asyncio.sleep(self.look_every if self.engine.can.listens else UNHEARD)
            self._read_all()

    async def _tell(self) -> None:
        while True:
            await self.some.wait()
            self.some.clear()
            await asyncio.sleep(GATHER)
            began = time.monotonic()
            await self.run_once()
            if not self.engine.can.notifies:  # every commit is heard here: leave the file to others for as long
                await asyncio.sleep(time.monotonic() - began)

    async def _count(self) -> None:
        while True:
            await self.counts.wait()
            self.counts.clear()
            await self.count_once()
            await asyncio.sleep(COUNTED)

    async def count_once(self) -> None:
        """Read how far the batches are that somebody watches, and tell it."""
        ids = [*self.batches]
        try:
            for at in range(0, len(ids), BREATH):
                some = ids[at : at + BREATH]
                found = {each.id: each for each in await self.engine.arun_once(batches.look(some))}
                for batch_id in some:
                    self._tell_batch(batch_id, found.get(batch_id))
        except BaseException:
            self.counts.set()  # next time
            raise

    def _tell_batch(self, batch_id: int, progress: BatchProgress | None) -> None:
        for watcher in [*self.batches.get(batch_id, ())]:
            if progress is None:
                watcher.missing_batch(batch_id)
            else:
                watcher.tell_batch(progress)

    async def run_once(self) -> None:
        """Read what has changed, and tell it."""
        if self._watches_queues():
            await self._find_new()
        asked, self.asked = self.asked, {}
        ids, self.changed = [*self.changed | asked.keys()], set()
        try:
            while ids:
                rows = await self.engine.arun_once(watching.look(ids[:READ]))
                await self._spread(rows, ids[:READ], asked)
                ids = ids[READ:]
        except BaseException:  # those whom nobody could be told of: next time
            self.changed.update(ids)
            for job_id in asked.keys() & set(ids):
                self.asked.setdefault(job_id, set()).update(asked[job_id])
            self.some.set()
            raise
        for watcher, queue in [*self.came][:COMERS]:
            await self._welcome(watcher, queue)
            self.came.pop((watcher, queue), None)
        if self.came:
            self.some.set()

    async def _find_new(self) -> None:
        """Jobs that were added to a queue that somebody watches; on a file also those that will soon be run."""
        newest = self.newest
        if newest is None:
            newest = await self.engine.arun_once(watching.newest())
        if self.added:
            self.added = False
            queues = None if self.everything else [*self.queues]
            found = await self.engine.arun_once(watching.newer(newest - OVERLAP, queues, READ + OVERLAP))
            newest = max([newest, *found])
            if len(found) == READ + OVERLAP:
                self.added = True  # there are more
                self.some.set()
            if not self.engine.can.notifies:
                soon = await self.engine.arun_once(watching.oldest(queues, READ))
                found = found | soon
            self.changed.update(found - self.known.keys())
        self.newest = newest if self._watches_queues() else None

    async def _welcome(self, watcher: Watcher, queue: str | None) -> None:
        """Who begins to watch a queue is told of its newest jobs."""
        only = None if queue is None else [queue]
        newest = await self.engine.arun_once(watching.newest())
        found = await self.engine.arun_once(watching.newer(newest - OVERLAP, only, OVERLAP))
        rows = await self.engine.arun_once(watching.look(sorted(found)[-FIRST:]))
        if (watcher, queue) in self.came:  # else it has left meanwhile
            for seen in sorted(rows, key=lambda each: each.id):
                self._tell_in_queue(seen, [watcher])

    async def _spread(self, rows: Collection[Seen], ids: Collection[int], asked: dict[int, set[Watcher]]) -> None:
        for number, seen in enumerate(rows):
            for watcher in self.jobs.get(seen.id, ()):
                watcher.tell(seen)
            if watchers := self.everything | self.queues.get(seen.queue, set()):
                self._tell_in_queue(seen, watchers)
            if number % BREATH == 0:
                await asyncio.sleep(0)  # those who read at once have their turn to send
        for job_id in (asked.keys() & set(ids)) - {seen.id for seen in rows}:
            for watcher in asked[job_id]:
                watcher.missing(job_id)

    def _tell_in_queue(self, seen: Seen, watchers: Collection[Watcher]) -> None:
        self.known[seen.id] = seen.state.final
        self.known.move_to_end(seen.id)
        while len(self.known) > KNOWN:
            self.known.popitem(last=False)
        for watcher in watchers:
            watcher.tell(seen)

    def _watches_queues(self) -> bool:
        return bool(self.everything or self.queues)


def _without(watched: dict[Any, set[Any]], key: Any, watcher: Any) -> None:
    watchers = watched.get(key)
    if watchers is not None:
        watchers.discard(watcher)
        if not watchers:
            del watched[key]


def _ids(payload: str) -> list[int]:
    """Of a notification, ours or made by hand; anything else says nothing."""
    try:
        changed = decode_changed(payload)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return changed.job_ids if changed.job_id is None else [*changed.job_ids, changed.job_id]
