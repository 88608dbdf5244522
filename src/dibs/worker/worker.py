"""A worker: claims, runs and settles until it is told to stop. Small services in one task group.

Two lanes keep two turns in flight, so that the database and the worker are both busy; one is enough where the database
has one writer at a time. Each adopted table has one more.
The turns themselves are in turns.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any

from dibs.config import Settings
from dibs.engines.engine import Engine
from dibs.errors import DatabaseError
from dibs.job import Lease, WorkerId
from dibs.operations import workers
from dibs.operations.adopted import Source
from dibs.task import Declared
from dibs.worker.contained import contain
from dibs.worker.feed import Feed
from dibs.worker.heart import Heart, Pulse, suspend_clock
from dibs.worker.holding import Holding
from dibs.worker.housekeeping import Housekeeping
from dibs.worker.identity import enlist
from dibs.worker.lane import Lane
from dibs.worker.processes import Processes
from dibs.worker.progress import Progress
from dibs.worker.rows import RowLane, RowWatch
from dibs.worker.run import Middleware, Runner
from dibs.worker.spelling import mind_spelling
from dibs.worker.stats import Limits, Stats
from dibs.worker.threads import DaemonThreads
from dibs.worker.turns import Turns
from dibs.worker.wakeups import Wakeups

log = logging.getLogger("dibs")

LAST_WORDS = 1.0  # seconds that cancelled jobs have to end


async def no_sources() -> Sequence[Source]:
    """No table is adopted."""
    return ()


class Worker(Turns):
    """Claims from the queues (in strict order, by weight, or all there are), as many as it runs at once."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Declared],
        settings: Settings,
        *,
        queues: Sequence[str] | Mapping[str, float] | None = None,
        middleware: Sequence[Middleware] = (),
        limits: Limits = Limits(),  # noqa: B008  # it is frozen
        find: Callable[[], Awaitable[Sequence[Source]]] = no_sources,
        app: Any = None,
    ) -> None:
        super().__init__(engine, tasks, settings, queues, limits)
        self.middleware, self.find, self.app = middleware, find, app
        self.threads = DaemonThreads(settings.concurrency, "dibs-job")
        self.enlisted: Callable[[Sequence[WorkerId]], None] = lambda rows: None
        self.begun, self.ended, self.forgotten = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.beaten: Sequence[WorkerId] | None = None  # the rows that the beat under way is for
        self.watches: list[RowWatch] = []
        self.holding = Holding(engine, self.buffer, lambda: self.heart.rows, self._release)

    async def run(self) -> Stats:
        """Work until `stop` is called."""
        self.loop = asyncio.get_running_loop()
        contain(self.loop)
        self.progress = Progress(self.engine, self.loop)
        sources = [source for source in await self.find() if self.wanted is None or source.name in self.wanted]
        self.feeds = {source.name: Feed(source) for source in sources}
        self.names = [name for name in self.names if name not in self.feeds]
        self.runner = Runner(
            self.engine,
            self.name,
            self.threads,
            self.progress.tell,
            self.middleware,
            Processes(self.limits.megabytes),
            sources={source.name: source for source in sources},
            public_url=self.settings.public_url or "",
            app=self.app,
        )
        began = suspend_clock()
        rows = [await self._enlist() for _ in range(self.engine.can.lanes + len(sources))]
        self.enlisted(rows)
        self.heart = self._heart(rows, began)
        self.lanes = self._lanes(rows, sources)
        self.wakeups = Wakeups(
            self.engine,
            self.settings.look,
            self.lanes,
            lambda: [*self.names, *self.feeds],
            self.wanted is None,
            self._woken,
            self._learn,
            lambda: self.feed.dry,
            self._stirred,
            self._looked,
        )
        self.heart.start()
        self.begun.set()
        log.info("Worker started: %s", self.name)
        await mind_spelling(self.engine, self.wanted or (), self.tasks.values(), self.feeds)
        try:
            await self._serve()
        finally:
            await self._leave()
        self.log.flush()
        log.info("Worker stopped: %s", self.name)
        return self.stats

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            self.watches = [self._watch(feed) for feed in self.feeds.values()]
            services = [
                group.create_task(run(), name=name)
                for name, run in (
                    ("wake-ups", self.wakeups.run),
                    ("progress", self.progress.run),
                    ("tallies", self.tallies.run),
                    ("holding", self.holding.run),
                    ("enlist again", self._stay_enlisted),
                    ("housekeeping", Housekeeping(self.engine).run),
                    *[("rows", watch.run) for watch in self.watches],
                )
            ]
            feeds = [*[self.feed] * self.engine.can.lanes, *self.feeds.values()]
            turns = [
                group.create_task(self._turns(lane, feed), name=f"lane {n}")
                for n, (lane, feed) in enumerate(zip(self.lanes, feeds, strict=True))
            ]
            await self.stopped.wait()
            await self._wind_down()
            await asyncio.wait(turns)
            for service in services:
                service.cancel()

    # What others tell us: wake-ups, and the heart.

    def _woken(self) -> None:
        for feed in (self.feed, *self.feeds.values()):
            feed.wake()
        self.buffer.woken()
        self.signal.set()

    def _learn(self, names: Sequence[str]) -> None:
        """Adopted tables have lanes of their own."""
        if self.wanted is None:
            self.names = [name for name in dict.fromkeys([*self.names, *names]) if name not in self.feeds]

    def _held(self) -> list[Lease]:
        """Asked by the heart's thread before each beat, and within it."""
        self.beaten = self.beaten or self.heart.rows
        return [each.job.lease for each in list(self.running.values())] + [
            job.lease for job, _ in list(self.buffer.waiting)
        ]

    def _asking(self) -> list[WorkerId]:
        room = len(self.running) < self.settings.concurrency
        asking = [lane.worker for lane in self.lanes if lane.has_asked() or room]
        self.holding.asked = bool(asking)
        return asking

    def _tell(self, pulse: Pulse) -> None:
        """From the heart's thread."""
        beaten, self.beaten = self.beaten or (), None
        self.loop.call_soon_threadsafe(self._pulse, pulse)
        if pulse.beat is not None and (gone := set(beaten) - pulse.beat.alive.keys()):
            self.loop.call_soon_threadsafe(self._thought_dead, gone)

    def _thought_dead(self, gone: Set[WorkerId]) -> None:
        """Unless we are somebody new already: the beat may have begun before."""
        if not self.over and any(lane.worker in gone for lane in self.lanes):
            self.forgotten.set()

    def _pulse(self, pulse: Pulse) -> None:
        if pulse.beat is None:
            log.warning("A beat failed: %s", pulse.error)
            return
        for lane in self.lanes:
            if lane.worker in pulse.beat.alive:
                lane.ladders.share(pulse.beat.alive[lane.worker], pulse.beat.claimers)
        self._drop(pulse.beat.lost)
        if pulse.recovered.workers or pulse.recovered.jobs:
            self.stats.recovered += len(pulse.recovered.jobs)
            log.warning(
                "Recovered %d jobs of %d workers that died", len(pulse.recovered.jobs), len(pulse.recovered.workers)
            )
            self._woken()
        self._mind_limits()
        self.signal.set()

    def _silenced(self) -> None:
        """From the heart's watch: others may soon take what we have. Threads see it even if the loop is blocked."""
        for each in list(self.running.values()):
            each.current.cancelled = True
        self.loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        log.warning("No beat went through for %g s: jobs are stopped before others may take them", self.heart.silence)
        self._cancel(self.running.values())
        self._release(self.buffer.hand_back())

    def _drop(self, lost: frozenset[Lease]) -> None:
        """No longer ours: cancelled by somebody, or taken over."""
        gone = [each for lease, each in self.running.items() if lease in lost]
        for each in gone:
            each.lost = True
        self._cancel(gone)
        if lost and self.buffer.waiting:
            self.buffer.drop(lost)

    # Beginning and end

    def _lanes(self, rows: Sequence[WorkerId], sources: Sequence[Source]) -> list[Lane]:
        engine, doubt, tells = self.engine, self.heart.doubt, self.settings.events
        lanes = engine.can.lanes
        return [
            *[Lane(engine, engine.session("lane"), row, doubt, tells=tells) for row in rows[:lanes]],
            *[
                RowLane.open(engine, row, doubt, source, self.name, tells=tells)
                for row, source in zip(rows[lanes:], sources, strict=True)
            ],
        ]

    def _looked(self) -> None:
        """New rows of adopted tables are looked for as often as their users say."""
        self.feed.wake()
        self.buffer.woken()
        self.signal.set()

    def _stirred(self) -> None:
        for watch in self.watches:
            watch.sooner.set()

    def _watch(self, feed: Feed) -> RowWatch:
        assert feed.source is not None
        return RowWatch(self.engine, feed.source, lambda: feed.dry, self._woken)

    async def _enlist(self) -> WorkerId:
        return await enlist(self.engine, self.name, lease=self.settings.lease, beat=self.settings.beat)

    def _heart(self, rows: Sequence[WorkerId], began: float) -> Heart:
        return Heart(
            self.engine,
            rows,
            lease=self.settings.lease,
            beat=self.settings.beat,
            held=self._held,
            tell=self._tell,
            over=self._silenced,
            asking=self._asking,
            judge=True,
            since=began,
        )

    async def _stay_enlisted(self) -> None:
        """Once for each time that we were thought dead: of two sets of rows, one would be beaten by nobody."""
        while True:
            await self.forgotten.wait()
            try:
                await self._enlist_again()
            except DatabaseError as error:
                log.warning("Enlisting again failed, and is repeated after the next beat: %s", error)
            self.forgotten.clear()

    async def _enlist_again(self) -> None:
        """Others thought us dead, and took what we had. We go on as somebody new."""
        log.warning("Worker %s was thought dead; it goes on under a new number", self.name)
        rows = [await self._enlist() for _ in self.lanes]
        for lane, row in zip(self.lanes, rows, strict=True):
            lane.worker = row
        self.heart.rows = tuple(rows)
        self.enlisted(rows)
        self.signal.set()

    async def _wind_down(self) -> None:
        """Hand back what has not begun; what runs may finish within the grace time."""
        self.stopping = True
        self._release(self.buffer.hand_back())
        if await self._all_ended(self.settings.grace):
            log.warning("%d jobs did not end within %g s and are stopped", len(self.running), self.settings.grace)
            self._cancel(self.running.values())
            await self._all_ended(LAST_WORDS)
        self.over = True
        self.signal.set()

    async def _all_ended(self, seconds: float) -> int:
        futures = [each.future for each in self.running.values()]
        if futures:
            await asyncio.wait(futures, timeout=seconds)
        return len(self.running)

    async def _leave(self) -> None:
        self._cancel(self.running.values())  # we may have been cancelled ourselves
        self.runner.close()
        try:
            if self.lanes:
                await self.tallies.run_once()
                if not any(
                    each.task.submits for each in self.running.values()
                ):  # else the lease tells that we are gone
                    await self.engine.arun(workers.leave(self.heart.rows))
        except DatabaseError as error:
            log.warning("Leaving failed; the lease will tell: %s", error)
        finally:
            await asyncio.to_thread(self.heart.stop)
            for lane in self.lanes:
                await lane.aclose()
