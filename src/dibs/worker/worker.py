"""A worker: claims, runs and settles until it is told to stop. Small services in one task group.

Two lanes keep two turns in flight, so that the database and the worker are both busy. Whatever ends becomes a settle,
and rides in the next turn together with what is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from dibs.config import Settings
from dibs.engines.engine import Engine
from dibs.errors import DatabaseError
from dibs.job import Claimed, JobState, Lease, WorkerId
from dibs.lifecycle import Back, Change, Committed, Done, Outcome, Way, after
from dibs.operations import workers
from dibs.operations.claims import Settle, Turn
from dibs.task import Declared
from dibs.worker.buffer import TOO_LONG, Buffer, Wish
from dibs.worker.heart import Heart, Pulse
from dibs.worker.housekeeping import Housekeeping
from dibs.worker.identity import enlist, new_name
from dibs.worker.lane import Ask, Lane
from dibs.worker.logs import JobLog
from dibs.worker.progress import Progress
from dibs.worker.run import Middleware, Runner
from dibs.worker.running import Running
from dibs.worker.stats import Limits, Stats, count
from dibs.worker.tallies import Tallies
from dibs.worker.threads import DaemonThreads
from dibs.worker.wakeups import Wakeups

log = logging.getLogger("dibs")

LANES = 2
FLUSH, FLUSH_AFTER = 100, 0.003  # a second turn at the same time is worth it for so many ends, or after so many seconds
PAUSE = 0.1  # after a turn that failed although it was repeated for a while
LAST_WORDS = 1.0  # seconds that cancelled jobs have to end


class Worker:
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
    ) -> None:
        self.engine, self.tasks, self.settings, self.wanted = engine, tasks, settings, queues
        self.name, self.stats, self.tallies = new_name(), Stats(), Tallies(engine)
        self.names: list[str] = list(queues or dict.fromkeys(task.options.queue for task in tasks.values()))
        self.running: dict[Lease, Running] = {}  # by lease: a job that was retried may run beside its cancelled self
        self.settles: list[tuple[Claimed, Settle]] = []
        self.unknown: set[str] = set()
        self.buffer = Buffer(settings.concurrency, settings.prefetch)
        self.threads = DaemonThreads(settings.concurrency, "dibs-job")
        self.middleware, self.limits = middleware, limits
        self.log = JobLog()
        self.enlisted: Callable[[Sequence[WorkerId]], None] = lambda rows: None
        self.stopping = self.over = False
        self.dry = False  # the last ask took all that there was
        self.in_flight = 0  # turns
        self.lanes: list[Lane] = []
        self.signal, self.stopped, self.begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.overdue_check: asyncio.TimerHandle | None = None

    async def run(self) -> Stats:
        """Work until `stop` is called."""
        self.loop = asyncio.get_running_loop()
        self.progress = Progress(self.engine, self.loop)
        self.runner = Runner(self.engine, self.name, self.threads, self.progress.tell, self.middleware)
        rows = [await self._enlist() for _ in range(LANES)]
        self.enlisted(rows)
        self.heart = self._heart(rows)
        engine, doubt, tells = self.engine, self.heart.doubt, self.settings.events
        self.lanes = [Lane(engine, engine.session("lane"), row, doubt, tells=tells) for row in rows]
        self.wakeups = Wakeups(
            self.engine,
            self.settings.look,
            self.lanes,
            lambda: self.names,
            self.wanted is None,
            self._woken,
            self._learn,
            lambda: self.dry,
        )
        self.heart.start()
        self.begun.set()
        log.info("Worker started: %s", self.name)
        try:
            await self._serve()
        finally:
            await self._leave()
        self.log.flush()
        log.info("Worker stopped: %s", self.name)
        return self.stats

    def stop(self) -> None:
        """Claim no more, hand back what has not begun, let the rest finish. Said twice: stop now."""
        if self.stopped.is_set():
            self._cancel(self.running.values())
        self.stopped.set()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            services = [
                group.create_task(service.run(), name=type(service).__name__)
                for service in (self.wakeups, self.progress, self.tallies, Housekeeping(self.engine))
            ]
            turns = [group.create_task(self._turns(lane), name=f"lane {n}") for n, lane in enumerate(self.lanes)]
            await self.stopped.wait()
            await self._wind_down()
            await asyncio.wait(turns)
            for service in services:
                service.cancel()

    # Turns: settle what has ended, ask for more.

    async def _turns(self, lane: Lane) -> None:
        while not self.over or self.settles:
            if self.in_flight and self.buffer.waiting and len(self.settles) < FLUSH:
                await asyncio.sleep(FLUSH_AFTER)  # the other lane is under way and there is enough to do: let more end
            settles, self.settles = self.settles, []
            wish = self._wish(settling=bool(settles))
            if settles or wish:
                await self._turn(lane, wish, settles)
            else:
                self.signal.clear()
                await self.signal.wait()

    def _wish(self, *, settling: bool) -> Wish | None:
        if self.stopping or self.in_trouble or not self.names or (self.dry and not settling):
            return None
        if self.limits.jobs is not None and self.stats.claimed >= self.limits.jobs:
            return None
        return self.buffer.wish(time.monotonic())

    @property
    def in_trouble(self) -> bool:
        """The last beat failed: nothing may start before one goes through."""
        return self.heart.failed or self.heart.expired

    async def _turn(self, lane: Lane, wish: Wish | None, settles: list[tuple[Claimed, Settle]]) -> None:
        ask = wish and Ask(self._order(), wish.limit, wish.suspects, wish.at_once, tuple(self.unknown))
        self.in_flight += 1
        try:
            turn = await lane.turn(ask, [settle for _, settle in settles])
        except DatabaseError as error:
            log.warning("A turn failed, and will be repeated: %s", error)
            self.settles[:0] = settles
            if wish:
                self.buffer.came(wish, (), time.monotonic())
            await asyncio.sleep(PAUSE)
            return
        finally:
            self.in_flight -= 1
        for job, settle in settles:
            self._count(job, settle.change, turn)
        if wish:
            self._came(wish, turn.claimed)
            await asyncio.sleep(0)  # what was claimed begins before more is asked for
        self.log.flush()

    def _order(self) -> Sequence[str]:
        if not isinstance(self.wanted, Mapping):
            return self.names
        weights = self.wanted  # the larger the weight, the likelier an early place
        return sorted(weights, key=lambda name: random.random() ** (1 / weights[name]), reverse=True)

    def _came(self, wish: Wish, claimed: Sequence[Claimed]) -> None:
        self.dry = wish.at_once and len(claimed) < wish.limit
        if claimed:
            self.wakeups.found()
        known = [job for job in claimed if job.type in self.tasks]
        if len(known) < len(claimed):
            self._refuse([job for job in claimed if job.type not in self.tasks])
        ready = self.buffer.came(wish, known, time.monotonic())
        if self.stopping or self.in_trouble:
            for job in ready:
                self.buffer.end(job)
            self._release([*ready, *self.buffer.hand_back()])
        else:
            for job in ready:
                self._start(job)
            self._mind_overdue()
        if not self.dry:
            self.signal.set()

    def _refuse(self, jobs: Sequence[Claimed]) -> None:
        """Of tasks that are not known here: left for others, and out of the next claims."""
        for name in {job.type for job in jobs} - self.unknown:
            log.warning("No task is named %r here: its jobs are left for other workers", name)
            self.unknown.add(name)
        self._release(jobs)

    def _release(self, jobs: Iterable[Claimed]) -> None:
        self.settles += [(job, Settle(job.lease, Back(Way.RELEASE))) for job in jobs]
        self.signal.set()

    # Jobs

    def _start(self, job: Claimed) -> None:
        task = self.tasks[job.type]
        each = Running(job, task, self.runner.context(task, job), time.monotonic())
        self.running[each.current.lease] = each
        self.stats.claimed += 1
        self.log.claimed(job.id, self.name)
        each.future = self.loop.create_task(self._run(each))

    async def _run(self, each: Running) -> None:
        outcome = await self.runner.run(each.task, each.job, each.current)
        if self.progress.pending(each.current.lease):
            await self.progress.flush(each.current.lease)
        self._ended(each, outcome)

    def _ended(self, each: Running, outcome: Outcome | Committed) -> None:
        job, task = each.job, each.task
        self.running.pop(each.current.lease, None)
        self.buffer.end(job)
        seconds = time.monotonic() - each.began
        if isinstance(outcome, Committed):
            change: Change = Done(outcome.state)
            self.lanes[0].note([job.id])
            self._came_to(job, change)
            self.log.ended(job.id, change, seconds)
        elif each.lost:
            self._refused(job)
        else:
            change = after(job, outcome, task.retry, has_hook=task.on_failure is not None)
            self.settles.append((job, Settle(each.current.lease, change, task.keep, job.attempts)))
            self.log.ended(job.id, change, seconds)
        if self.limits.jobs is not None:
            self._mind_limits()
        if self.buffer.waiting and not self.in_trouble:
            for ready in self.buffer.take(time.monotonic()):
                self._start(ready)
        self.signal.set()

    def _count(self, job: Claimed, change: Change, turn: Turn) -> None:
        if turn.lost and job.id in turn.lost:
            self._refused(job)
        elif turn.culprits and job.id in turn.culprits:
            self._came_to(job, Done(JobState.FAILED))
        elif turn.before and job.id in turn.before:
            self._came_to(job, Done(turn.before[job.id]))
        else:
            self._came_to(job, change)

    def _came_to(self, job: Claimed, change: Change) -> None:
        count(self.stats, change)
        self.tallies.count(job.queue, change)

    def _refused(self, job: Claimed) -> None:
        self.stats.refused += 1
        log.warning("Job %s was taken over or cancelled: what it came to here was refused", job.id)

    def _mind_overdue(self) -> None:
        """What waits here too long is handed back: others could start it."""
        if self.overdue_check is None and self.buffer.waiting:
            self.overdue_check = self.loop.call_later(TOO_LONG / 2, self._check_overdue)

    def _check_overdue(self) -> None:
        self.overdue_check = None
        if self.buffer.overdue(time.monotonic()):
            self._release(self.buffer.hand_back())
        self._mind_overdue()

    # What others tell us: wake-ups, and the heart.

    def _woken(self) -> None:
        self.dry = False
        self.buffer.woken()
        self.signal.set()

    def _learn(self, names: Sequence[str]) -> None:
        if self.wanted is None:
            self.names = list(dict.fromkeys([*self.names, *names]))

    def _held(self) -> list[Lease]:
        return [each.job.lease for each in list(self.running.values())] + [
            job.lease for job, _ in list(self.buffer.waiting)
        ]

    def _asking(self) -> list[WorkerId]:
        room = len(self.running) < self.settings.concurrency
        return [lane.worker for lane in self.lanes if lane.has_asked() or room]

    def _tell(self, pulse: Pulse) -> None:
        """From the heart's thread."""
        self.loop.call_soon_threadsafe(self._pulse, pulse)

    def _pulse(self, pulse: Pulse) -> None:
        if pulse.beat is None:
            log.warning("A beat failed: %s", pulse.error)
            if self.heart.expired:
                self._cancel(self.running.values())
                self._release(self.buffer.hand_back())
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
        if len(pulse.beat.alive) < len(self.lanes) and not self.over:
            self.loop.create_task(self._enlist_again(), name="enlist again")
        self._mind_limits()
        self.signal.set()

    def _mind_limits(self) -> None:
        reached = None if self.stopped.is_set() else self.limits.reached(self.stats)
        if reached:
            log.info("Worker %s stops, to be replaced: %s", self.name, reached)
            self.stop()

    def _drop(self, lost: frozenset[Lease]) -> None:
        """No longer ours: cancelled by somebody, or taken over."""
        gone = [each for lease, each in self.running.items() if lease in lost]
        for each in gone:
            each.lost = True
        self._cancel(gone)
        if lost and self.buffer.waiting:
            self.buffer.drop(lost)

    def _cancel(self, those: Iterable[Running]) -> None:
        for each in list(those):
            each.current.cancelled = True
            each.future.cancel()

    # Beginning and end

    async def _enlist(self) -> WorkerId:
        return await enlist(self.engine, self.name, lease=self.settings.lease, beat=self.settings.beat)

    def _heart(self, rows: Sequence[WorkerId]) -> Heart:
        return Heart(
            self.engine,
            rows,
            lease=self.settings.lease,
            beat=self.settings.beat,
            held=self._held,
            tell=self._tell,
            asking=self._asking,
            judge=True,
        )

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
        self.runner.close()
        try:
            if self.lanes:
                await self.tallies.run_once()
                await self.engine.arun(workers.leave(self.heart.rows))
        except DatabaseError as error:
            log.warning("Leaving failed; the lease will tell: %s", error)
        finally:
            await asyncio.to_thread(self.heart.stop)
            for lane in self.lanes:
                await lane.aclose()
