"""One-shot work, for serverless functions and cron: claim like a worker, run, settle, and end when nothing is due.

It never blocks to judge: workers that have been silent for two leases are noted, and those that are still silent five
seconds later are recovered, and their jobs run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dibs.engines.engine import Engine
from dibs.job import Claimed, Lease, WorkerId
from dibs.lifecycle import Back, Change, Committed, Errored, Way, after
from dibs.operations import adopted, claims, queues, workers
from dibs.operations.adopted import Source
from dibs.operations.claims import Settle, Turn
from dibs.operations.workers import Beat
from dibs.task import Declared
from dibs.worker.contained import contain
from dibs.worker.feed import Feed
from dibs.worker.heart import Heart, Pulse, suspend_clock
from dibs.worker.identity import enlist, new_name
from dibs.worker.lane import Ask, Lane
from dibs.worker.logs import JobLog
from dibs.worker.progress import Progress
from dibs.worker.report import DrainReport
from dibs.worker.rows import RowLane, mind
from dibs.worker.run import Middleware, Runner
from dibs.worker.running import HANDED_BACK, Running
from dibs.worker.spelling import mind_spelling
from dibs.worker.stats import count
from dibs.worker.tallies import Tallies
from dibs.worker.threads import DaemonThreads

log = logging.getLogger("dibs")

SILENT_LEASES, SECOND_LOOK = 2.0, 5.0
SOON = 1.0  # a job due within this time is waited for
PAUSE = 0.25  # between looks while jobs run
COUNTED = 100_000
STOP_EARLY = 2.0  # seconds before the deadline, or a tenth of it
MISSES = 3  # claims that find nothing although something is due: somebody else's, or of an unknown type


@dataclass(slots=True)
class Drain:
    """One drain, from enlisting to leaving."""

    engine: Engine
    tasks: Mapping[str, Declared]
    lease: float
    beat: float
    grace: float
    concurrency: int
    find: Callable[[], Awaitable[Sequence[Source]]]
    tells: bool = True  # of every change
    limit: int | None = None
    deadline: float | None = None
    queues: Sequence[str] | None = None
    on_settled: Callable[[Claimed, Change], None] | None = None
    middleware: Sequence[Middleware] = ()
    public_url: str = ""
    app: Any = None  # whose jobs they are
    log: JobLog = field(default_factory=JobLog)
    report: DrainReport = field(default_factory=DrainReport)
    name: str = field(default_factory=new_name)
    running: dict[Lease, Running] = field(default_factory=dict)
    sources: Sequence[Source] = ()  # that were found
    feeds: dict[str, Feed] = field(default_factory=dict)  # adopted tables by their names
    feed: Feed = field(default_factory=Feed)  # the queues
    unknown: list[str] = field(default_factory=list)
    silent: list[tuple[WorkerId, Any]] = field(default_factory=list)
    second_look: float | None = None
    began: float = field(default_factory=time.monotonic)
    heart: Heart = field(init=False)
    tallies: Tallies = field(init=False)
    lane: Lane = field(init=False)
    row_lanes: list[RowLane] = field(default_factory=list)
    lanes_turned: deque[tuple[Lane, Feed]] = field(default_factory=deque)
    threads: DaemonThreads = field(init=False)
    progress: Progress = field(init=False)
    runner: Runner = field(init=False)
    loop: asyncio.AbstractEventLoop = field(init=False)
    misses: int = 0
    names: list[str] = field(default_factory=list)
    named_at: float = 0.0
    stopping: bool = False

    async def run(self) -> DrainReport:
        """Work until nothing is due, the limit is reached, or the deadline is near."""
        self.loop = asyncio.get_running_loop()
        contain(self.loop)
        self.sources = [each for each in await self.find() if self.queues is None or each.name in self.queues]
        self.feeds = {source.name: Feed(source) for source in self.sources}
        began = suspend_clock()
        worker, *others = [
            await enlist(self.engine, self.name, lease=self.lease, beat=self.beat) for _ in (None, *self.sources)
        ]
        session = self.engine.session("lane")
        self.heart = Heart(
            self.engine,
            [worker, *others],
            lease=self.lease,
            beat=self.beat,
            held=self._held,
            tell=self._tell,
            over=self._silenced,
            asking=self._asking,
            since=began,
        )
        self.lane = Lane(self.engine, session, worker, self.heart.doubt, tells=self.tells)
        self.row_lanes = [self._row_lane(row, source) for row, source in zip(others, self.sources, strict=True)]
        feeds = (self.feed, *self.feeds.values())
        self.lanes_turned = deque(zip((self.lane, *self.row_lanes), feeds, strict=True))
        self.tallies = Tallies(self.engine)
        self.threads = DaemonThreads(self.concurrency, "dibs-job")
        self.progress = Progress(self.engine, self.loop)
        self.runner = Runner(
            self.engine,
            self.name,
            self.threads,
            self.progress.tell,
            self.middleware,
            sources={source.name: source for source in self.sources},
            public_url=self.public_url,
            app=self.app,
        )
        progress = self.loop.create_task(self.progress.run(), name="progress")
        self.heart.start()
        log.info("Worker started: %s", self.name)
        try:
            await self._begin()
            while await self._step():
                pass
        finally:
            progress.cancel()
            await self._end([worker, *others])
            for lane in (self.lane, *self.row_lanes):
                await lane.aclose()
        self.report.seconds = time.monotonic() - self.began
        log.info("Worker stopped: %s: %s", self.name, self.report)
        return self.report

    def stop(self) -> None:
        """Claim no more, let what runs finish within the grace time, hand the rest back. Said twice: now."""
        seconds = 0.0 if self.stopping else self.grace
        self.stopping = True
        self.loop.call_later(seconds, self._cancel_all)
        until = time.monotonic() - self.began + seconds + STOP_EARLY  # also for what does not let itself be stopped
        self.deadline = until if self.deadline is None else min(until, self.deadline)

    async def _begin(self) -> None:
        await mind_spelling(self.engine, self.queues or (), self.tasks.values(), self.feeds)
        self.silent = await self.engine.arun(workers.silent(SILENT_LEASES))
        self.second_look = time.monotonic() + SECOND_LOOK if self.silent else None
        self.report.available = await self.engine.arun(claims.available(await self._every_queue(), COUNTED))
        for source in self.sources:
            await mind(self.engine.arun, source)
            self.report.available += (await self.engine.arun(adopted.counted(source, COUNTED)))[0]

    def _row_lane(self, row: WorkerId, source: Source) -> RowLane:
        return RowLane.open(self.engine, row, self.heart.doubt, source, self.name, tells=self.tells)

    async def _step(self) -> bool:
        """One turn and what follows from it; False when there is nothing left to do."""
        self._collect()
        await self._look_again()
        room = self._room()
        if await self._turns():
            return True
        if self.running:
            await self._wait_for_one()
            return not self._over()
        if self._unsaid():  # somebody else has a lock on their rows
            await asyncio.sleep(PAUSE)
            return not self._late()
        return await self._wait_for_due(room)

    def _unsaid(self) -> bool:
        return any(feed.settles for feed in (self.feed, *self.feeds.values()))

    async def _turns(self, *, claiming: bool = True) -> int:
        """One on each lane that has something to do; how many jobs they took."""
        claimed = 0
        self.lanes_turned.rotate()  # another one is first each time: what there is room for is not all for one
        for lane, feed in self.lanes_turned:
            room = self._room() if claiming else 0
            if room or feed.settles:
                turn = await self._turn(lane, feed, room)
                claimed += turn.picked if feed.source else len(turn.claimed)  # of rows, some need no run
        return claimed

    def _in_trouble(self) -> bool:
        """The last beat failed: nothing may start before one goes through."""
        return self.heart.failed or self.heart.expired

    def _room(self) -> int:
        """How many jobs may start now."""
        if self.stopping or self._late() or self._in_trouble():
            return 0
        left = self.concurrency if self.limit is None else self.limit - self.report.claimed
        return max(0, min(self.concurrency - len(self.running), left))

    async def _turn(self, lane: Lane, feed: Feed, room: int) -> Turn:
        ask = None
        if room:
            suspects = 0 if self._has_suspect(feed) else 1
            limit = min(room, feed.source.batch) if feed.source else room
            ask = Ask(await self._queues(), limit, suspects, unknown=tuple(self.unknown))
        settles = feed.settles
        turn = await lane.turn(ask, [settle for _, settle in settles])  # raises: they are kept for the end
        feed.settles = [each for each in settles if each[0].id in turn.later]
        for job, settle in settles:
            if job.id not in turn.later:
                self._count(job, settle.change, turn)
        for job in turn.claimed:
            self._start(job, feed)
            self.misses = 0
        return turn

    def _has_suspect(self, feed: Feed) -> bool:
        """One that runs, or whose outcome is to go by another lane: the next one is not to begin before."""
        elsewhere = [job for each in (self.feed, *self.feeds.values()) if each is not feed for job, _ in each.settles]
        return any(job.suspect for job in (*[each.job for each in self.running.values()], *elsewhere))

    def _start(self, job: Claimed, feed: Feed) -> None:
        task = self.tasks.get(job.type)
        if task is None or task.takes_rows != bool(feed.source):
            self.unknown.append(job.type)
            self.feed.settles.append((job, Settle(job.lease, Back(Way.RELEASE))))
            return
        if self.stopping or self._in_trouble():
            self._say(job, task, Back(Way.RELEASE))
            return
        self.report.claimed += 1
        each = Running(job, task, self.runner.context(task, job), time.monotonic())
        each.future = asyncio.Task(self._run(each), loop=self.loop, name=f"job {job.id}")
        self.running[each.current.lease] = each
        self.log.claimed(task.label(job), self.name)

    async def _run(self, each: Running) -> None:
        each.outcome = await self.runner.run(each.task, each.job, each.current)
        if self.progress.pending(each.job.lease):
            await self.progress.flush(each.job.lease)

    def _collect(self) -> None:
        """Outcomes of jobs that have ended become settles."""
        for each in [each for each in self.running.values() if each.future.done()]:
            del self.running[each.current.lease]
            if not each.future.cancelled():
                each.future.result()  # raises what is a mistake of ours
            if isinstance(each.outcome, Committed):
                change = each.outcome.change
                self.lane.note([each.job.id])
                self._tally(each.job, change)
            else:
                change = after(each.job, each.outcome, each.task.retry, has_hook=each.task.finishes)
                self._say(each.job, each.task, change)
            self.log.ended(each.task.label(each.job), change, time.monotonic() - each.began)

    def _say(self, job: Claimed, task: Declared, change: Change) -> None:
        """What became of it, with the next turn."""
        settle = Settle(job.lease, change, task.keep, job.attempts, task.row_key(job))
        self.feeds.get(job.type, self.feed).settles.append((job, settle))

    def _count(self, job: Claimed, change: Change, turn: Turn) -> None:
        became = turn.became(job.id, change)
        if became is None:
            self.report.refused += 1
        else:
            self._tally(job, became)

    def _tally(self, job: Claimed, change: Change) -> None:
        count(self.report, change)
        self.tallies.count(job.queue, change)
        if self.on_settled is not None:
            self.on_settled(job, change)

    async def _look_again(self) -> None:
        if self.second_look is None or time.monotonic() < self.second_look:
            return
        self.second_look = None
        recovered = await self.engine.arun(workers.recover(silent=self.silent))
        self.report.recovered += len(recovered.jobs)

    async def _wait_for_one(self) -> None:
        futures = [each.future for each in self.running.values()]
        timeout = PAUSE if self._room() or self.heart.failed else self.beat
        if self.deadline is not None:
            timeout = min(timeout, max(0.0, self._stop_at() - time.monotonic()))
        await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._late():
            self._cancel_all()
            await asyncio.wait(futures, timeout=PAUSE)

    async def _wait_for_due(self, room: int) -> bool:
        """Nothing runs and nothing was claimed: wait for what is due soon, or end."""
        if self.stopping or self._late() or (self.limit is not None and self.report.claimed >= self.limit):
            return False
        if room == 0:  # the last beat failed: nothing may start before one goes through
            await asyncio.sleep(PAUSE)
            return not self.heart.expired
        if self.heart.in_doubt:  # the next beat hands something back
            await asyncio.sleep(min(PAUSE, self.beat))
            return True
        due = await self.engine.arun(claims.next_due(await self._every_queue()))
        self.misses += due == 0.0
        if self.second_look is not None:
            due = min(SOON if due is None else due, max(0.0, self.second_look - time.monotonic()))
        elif due is None or due > SOON or self.misses >= MISSES:
            return False
        for lane in (self.lane, *self.row_lanes):
            lane.ladders.forget()
        await asyncio.sleep(max(due, 0.01))
        return True

    async def _queues(self) -> Sequence[str]:
        """The queues asked for, else every queue, declared or found. Adopted tables have lanes of their own."""
        if self.queues is not None:
            return [name for name in self.queues if name not in self.feeds]
        if not self.names or time.monotonic() - self.named_at > SECOND_LOOK:
            found = await self.engine.arun(queues.names())
            declared = [task.options.queue for task in self.tasks.values()]
            self.names = [name for name in dict.fromkeys([*declared, *found]) if name not in self.feeds]
            self.named_at = time.monotonic()
        return self.names

    async def _every_queue(self) -> list[str]:
        return [*await self._queues(), *self.feeds]

    def _stop_at(self) -> float:
        assert self.deadline is not None
        return self.began + self.deadline - min(STOP_EARLY, self.deadline / 10)

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self._stop_at()

    def _over(self) -> bool:
        """The deadline has come, and a job does not let itself be stopped."""
        return self.deadline is not None and time.monotonic() >= self.began + self.deadline

    def _cancel_all(self) -> None:
        for each in self.running.values():
            each.current.cancelled = True
            each.future.cancel()

    def _held(self) -> list[Lease]:
        return [each.job.lease for each in list(self.running.values())]

    def _asking(self) -> list[WorkerId]:
        lanes = (self.lane, *self.row_lanes)
        return [lane.worker for lane in lanes if lane.has_asked() or self._room()]

    def _tell(self, pulse: Pulse) -> None:
        """From the heart's thread."""
        if pulse.beat is not None:
            self.loop.call_soon_threadsafe(self._beaten, pulse.beat)

    def _beaten(self, beat: Beat) -> None:
        """Stop what is no longer ours."""
        for lane in (self.lane, *self.row_lanes):
            if lane.worker in beat.alive:
                lane.ladders.share(beat.alive[lane.worker], beat.claimers)
        self._drop(beat.lost)

    def _silenced(self) -> None:
        """From the heart's watch: others may soon take what we have. Threads see it even if the loop is blocked."""
        for each in list(self.running.values()):
            each.current.cancelled = True
        self.loop.call_soon_threadsafe(self._cancel_all)

    def _drop(self, lost: frozenset[Lease]) -> None:
        for each in self.running.values():
            if each.job.lease in lost:
                each.current.cancelled = True
                each.future.cancel()

    async def _end(self, rows: Sequence[WorkerId]) -> None:
        """Settle what is left, hand back what still runs, take our row away."""
        for each in self.running.values():
            if isinstance(each.outcome, Errored) and each.future.cancelling():
                each.outcome = HANDED_BACK  # whoever ends the loop has cancelled it, and us
        self._cancel_all()
        self.runner.close()
        if self.running:
            await asyncio.wait([each.future for each in self.running.values()], timeout=PAUSE)
        self._collect()
        try:
            await self._turns(claiming=False)
            await self.tallies.run_once()
            if not any(each.task.submits for each in self.running.values()):  # else the lease tells that we are gone
                await self.engine.arun(workers.leave(rows))
        finally:
            await asyncio.to_thread(self.heart.stop)
