"""The half of a worker that takes turns: it claims, runs and settles.

Whatever ends becomes a settle, and rides in the next turn together with what is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextvars import copy_context

from dibs.config import Settings
from dibs.engines.engine import Engine
from dibs.errors import DatabaseError
from dibs.job import Claimed, Lease
from dibs.lifecycle import SUCCESS, Back, Change, Committed, Outcome, Way, after
from dibs.operations.claims import RETENTION_DAYS, Settle, Turn
from dibs.task import Declared
from dibs.worker.buffer import TOO_LONG, Buffer, Wish
from dibs.worker.feed import Feed
from dibs.worker.heart import Heart
from dibs.worker.holding import Holding
from dibs.worker.identity import new_name
from dibs.worker.lane import Ask, Lane
from dibs.worker.logs import JobLog
from dibs.worker.progress import Progress
from dibs.worker.run import Runner
from dibs.worker.running import Running
from dibs.worker.stats import Limits, Stats, count
from dibs.worker.tallies import Tallies
from dibs.worker.wakeups import Wakeups

log = logging.getLogger("dibs")

FLUSH, FLUSH_AFTER = 100, 0.003  # a second turn at the same time is worth it for so many ends, or after so many seconds
LATER = 0.25  # seconds before a settle is tried again whose row somebody else has locked
PAUSE = 0.1  # after a turn that failed although it was repeated for a while


class Turns:
    """What a worker holds, and what it does with it. When to begin and to end is up to the other half."""

    loop: asyncio.AbstractEventLoop
    heart: Heart
    wakeups: Wakeups
    runner: Runner
    progress: Progress
    holding: Holding

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Declared],
        settings: Settings,
        queues: Sequence[str] | Mapping[str, float] | None,
        limits: Limits,
    ) -> None:
        self.engine, self.tasks, self.settings, self.wanted, self.limits = engine, tasks, settings, queues, limits
        self.name, self.stats, self.tallies = new_name(), Stats(), Tallies(engine)
        self.names: list[str] = list(queues or dict.fromkeys(task.options.queue for task in tasks.values()))
        self.running: dict[Lease, Running] = {}  # by lease: a job that was retried may run beside its cancelled self
        self.feed, self.feeds = Feed(), dict[str, Feed]()  # the queues; adopted tables by their names
        self.unsettled: set[Lease] = set()  # of suspects that have ended, until the database has said so
        self.unknown: set[str] = set()
        self.buffer = Buffer(settings.concurrency, settings.prefetch)
        self.log = JobLog()
        self.stopping = self.over = False
        self.in_flight = 0  # turns
        self.lanes: list[Lane] = []
        self.signal, self.stopped = asyncio.Event(), asyncio.Event()
        self.overdue_check: asyncio.TimerHandle | None = None
        self.context = copy_context()  # of whoever made the worker: each job has a copy

    def stop(self) -> None:
        """Claim no more, hand back what has not begun, let the rest finish. Said twice: stop now."""
        if self.stopped.is_set():
            self._cancel(self.running.values())
        self.stopped.set()

    async def _turns(self, lane: Lane, feed: Feed) -> None:
        while not self.over or feed.settles or feed.later:
            if self.in_flight and self.buffer.waiting and len(feed.settles) < FLUSH:
                await asyncio.sleep(FLUSH_AFTER)  # the other lane is under way and there is enough to do: let more end
            settles, feed.settles = feed.settles, []
            wish = self._with_care(self._wish(feed, settling=bool(settles)), settles)
            if settles or wish:
                await self._turn(lane, feed, wish, settles)
            elif feed.later or not self.over:  # it may have become so while we paused
                self.signal.clear()
                await self.signal.wait()

    def _wish(self, feed: Feed, *, settling: bool) -> Wish | None:
        if self.stopping or self.in_trouble or (feed.dry and not settling):
            return None
        if self.limits.jobs is not None and self.stats.claimed >= self.limits.jobs:
            return None
        if feed.source is not None:
            return self.buffer.wish_some(feed.source.batch, time.monotonic())
        return self.buffer.wish(time.monotonic()) if self.names else None

    def _with_care(self, wish: Wish | None, settles: Sequence[tuple[Claimed, Settle]]) -> Wish | None:
        """The next suspect is claimed with what the last one came to, or after it. If it began before, and killed us,
        the last one would be charged for that too."""
        if wish and wish.suspects and self.unsettled and self.unsettled - {settle.lease for _, settle in settles}:
            return self.buffer.spare_suspects(wish)
        return wish

    @property
    def in_trouble(self) -> bool:
        """The last beat failed: nothing may start before one goes through."""
        return self.heart.failed or self.heart.expired

    async def _turn(self, lane: Lane, feed: Feed, wish: Wish | None, settles: list[tuple[Claimed, Settle]]) -> None:
        ask = wish and Ask(self._order(), wish.limit, wish.suspects, wish.at_once, tuple(self.unknown))
        self.in_flight += 1
        if wish:
            feed.woken = False
        try:
            turn = await lane.turn(ask, [settle for _, settle in settles])
        except DatabaseError as error:
            log.warning("A turn failed, and will be repeated: %s", error)
            feed.settles[:0] = settles
            if wish:
                self.buffer.came(wish, (), time.monotonic())
            await asyncio.sleep(PAUSE)
            return
        finally:
            self.in_flight -= 1
        self._settled(feed, settles, turn)
        if wish:
            self._came(feed, wish, turn)
            await asyncio.sleep(0)  # what was claimed begins before more is asked for
        self.log.flush()

    def _settled(self, feed: Feed, settles: list[tuple[Claimed, Settle]], turn: Turn) -> None:
        others = settles
        if turn.went_well:  # most, and most are plain successes
            for queue, number in Counter([job.queue for job, settle in settles if settle.change is SUCCESS]).items():
                self._came_to(queue, SUCCESS, number)
            others = [each for each in settles if each[1].change is not SUCCESS]
        for job, settle in others:
            if job.id in turn.later:
                feed.later.append((job, settle))
            else:
                self._count(job, settle.change, turn)
        if turn.later:
            self.loop.call_later(LATER, self._say_again, feed)
        if self.unsettled:
            self.unsettled -= {settle.lease for job, settle in settles if job.id not in turn.later}
            self._mind_suspects()

    def _order(self) -> Sequence[str]:
        if not isinstance(self.wanted, Mapping):
            return self.names
        weights = self.wanted  # the larger the weight, the likelier an early place
        return sorted(self.names, key=lambda name: random.random() ** (1 / weights[name]), reverse=True)

    def _came(self, feed: Feed, wish: Wish, turn: Turn) -> None:
        claimed = turn.claimed
        took = turn.picked if feed.source else len(claimed)  # of rows, some need no run
        feed.dry = wish.at_once and took < wish.limit and not feed.woken
        if feed.dry:
            self.wakeups.rested.set()
            self.holding.idle.set()
        feed.missed = feed.dry and (not wish.suspects or any(job.suspect for job in claimed))
        if claimed:
            self.wakeups.found()
        known = [job for job in claimed if (task := self.tasks.get(job.type)) and task.takes_rows == bool(feed.source)]
        if len(known) < len(claimed):
            self._refuse([job for job in claimed if job not in known])
        if turn.paused and self.buffer.waiting:
            self._release(self.buffer.hand_back(turn.paused))
        ready = self.buffer.came(wish, known, time.monotonic())
        if wish.suspects:
            self._mind_suspects()
        if self.stopping or self.in_trouble:
            for job in ready:
                self.buffer.end(job)
            self._release([*ready, *self.buffer.hand_back()])
        else:
            for job in ready:
                self._start(job)
            self._mind_overdue()
        if not feed.dry:
            self.signal.set()

    def _refuse(self, jobs: Sequence[Claimed]) -> None:
        """Of tasks that are not known here, or are for rows only: left for others, and out of the next claims."""
        for name in {job.type for job in jobs} - self.unknown:
            log.warning("No task is named %r here: its jobs are left for other workers", name)
            self.unknown.add(name)
        self.feed.settles += [(job, Settle(job.lease, Back(Way.RELEASE))) for job in jobs]
        self.signal.set()

    def _release(self, jobs: Iterable[Claimed]) -> None:
        for job in jobs:
            self._say(job, Back(Way.RELEASE))
        self.signal.set()

    def _say(self, job: Claimed, change: Change, lease: Lease | None = None) -> None:
        """What became of it, with the next turn."""
        task = self.tasks.get(job.type)
        keep, key = (task.keep, task.row_key(job)) if task else (RETENTION_DAYS, None)
        settle = Settle(lease or job.lease, change, keep, job.attempts, key)
        self._feed(job).settles.append((job, settle))
        if job.suspect:
            self.unsettled.add(settle.lease)

    def _say_again(self, feed: Feed) -> None:
        feed.settles[:0] = feed.later
        feed.later.clear()
        self.signal.set()

    def _feed(self, job: Claimed) -> Feed:
        return self.feeds.get(job.type, self.feed) if self.feeds else self.feed

    # Jobs

    def _start(self, job: Claimed) -> None:
        task = self.tasks[job.type]
        each = Running(job, task, self.runner.context(task, job), time.monotonic())
        self.running[each.current.lease] = each
        self.stats.claimed += 1
        self.log.claimed(task.label(job), self.name)
        # By no factory: that of the loop is for others. And nobody sees what the job that ended just now has set.
        each.future = asyncio.Task(self._run(each), loop=self.loop, context=self.context.copy())

    async def _run(self, each: Running) -> None:
        outcome = await self.runner.run(each.task, each.job, each.current)
        try:
            if self.progress.pending(each.current.lease):
                await self.progress.flush(each.current.lease)
        finally:  # also of one that is told to stop only now, or has told itself
            self._ended(each, outcome)

    def _ended(self, each: Running, outcome: Outcome | Committed) -> None:
        job, task = each.job, each.task
        self.running.pop(each.current.lease, None)
        self.buffer.end(job)
        if job.suspect:
            self._mind_suspects()
        seconds = time.monotonic() - each.began
        if isinstance(outcome, Committed):
            change = outcome.change
            self.lanes[0].note([job.id])  # any of them tells
            self._came_to(job.queue, change)
            self.log.ended(task.label(job), change, seconds)
        elif each.lost:
            self._refused(job)
        else:
            change = after(job, outcome, task.retry, has_hook=task.finishes)
            self._say(job, change, each.current.lease)
            self.log.ended(task.label(job), change, seconds)
        if self.limits.jobs is not None:
            self._mind_limits()
        if self.buffer.waiting and not self.in_trouble:
            for ready in self.buffer.take(time.monotonic()):
                self._start(ready)
        self.signal.set()

    def _mind_suspects(self) -> None:
        """When none runs or is asked for any more, the next one may be: whoever could not ask for it does so now."""
        if self.buffer.suspects or self.unsettled:
            return
        for feed in (self.feed, *self.feeds.values()):
            if feed.missed:
                feed.dry = feed.missed = False
                self.signal.set()

    def _count(self, job: Claimed, change: Change, turn: Turn) -> None:
        became = turn.became(job.id, change)
        if became is None:
            self._refused(job)
        else:
            self._came_to(job.queue, became)

    def _came_to(self, queue: str, change: Change, number: int = 1) -> None:
        count(self.stats, change, number)
        self.tallies.count(queue, change, number)

    def _refused(self, job: Claimed) -> None:
        self.stats.refused += 1
        log.warning("Job %s was taken over or cancelled: what it came to here was refused", job.id)

    def _mind_overdue(self) -> None:
        """What waits here too long is handed back: others could start it."""
        if self.overdue_check is None and self.buffer.waiting:
            self.overdue_check = self.loop.call_later(TOO_LONG / 2, self._check_overdue)

    def _check_overdue(self) -> None:
        self.overdue_check = None
        now = time.monotonic()
        if self.buffer.overdue(now):
            self._release(self.buffer.hand_back())
        elif self.buffer.holds_long(now):
            self.holding.long.set()
        self._mind_overdue()

    def _mind_limits(self) -> None:
        reached = None if self.stopped.is_set() else self.limits.reached(self.stats)
        if reached:
            log.info("Worker %s stops, to be replaced: %s", self.name, reached)
            self.stop()

    def _cancel(self, those: Iterable[Running]) -> None:
        for each in list(those):
            each.current.cancelled = True
            self.loop.call_soon(each.future.cancel)  # when it has begun: else it would end without a word
