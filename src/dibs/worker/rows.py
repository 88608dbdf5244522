"""A lane for the rows of one adopted table: its own turns, a place in the table's own order, and looks at what was left
behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dibs.engines.engine import Engine
from dibs.errors import Conflict, ConnectionLost, DatabaseError, DeadlineExceeded, DibsError, Locked, Unreachable
from dibs.job import Claimed, JobId, JobState, WorkerId
from dibs.ladder import START, Key
from dibs.lifecycle import CANCELLING, SUCCESS, Back, Done, Way
from dibs.operations import adopted
from dibs.operations.adopted import RANKS, UNWRITTEN, Room, Source, Taken, printable, taken_of
from dibs.operations.claims import Settle, Turn, Want
from dibs.operations.operation import Operation
from dibs.worker.lane import Ask, Lane, culprit
from dibs.worker.legible import legible

log = logging.getLogger("dibs")

LOOK = 1.0  # seconds between readings of the table from its beginning, while there is something to do
SHARE = 50  # and so many times as long as the last one took, at least
PASSING = (Conflict, ConnectionLost, DeadlineExceeded, Unreachable)  # the next try may go through
OFTEN, SELDOM = 1.0, 60.0  # seconds between looks at what was left behind
AVOIDED, LONGEST = 60.0, 600.0  # seconds for which a row is left alone that cannot be claimed, and at most
SPARED = 0.5  # seconds between two such rows: the more there are, the longer each of them is left alone
NAMED = 100  # of those that are left alone, so many are named in the log
LOCKED = 5.0  # seconds after which a row is tried again that somebody else had a lock on


@dataclass(slots=True)
class RowLane(Lane):
    """Turns on one adopted table."""

    source: Source = field(kw_only=True)
    worker_name: str = field(kw_only=True)
    place: Sequence[str] | None = None  # where the last claim stopped; None: read from the beginning
    looked: float = 0.0  # when the table was last read from its beginning, by our own clock
    looks: float = 0.0  # seconds that it took
    came: list[tuple[Claimed, Taken]] = field(default_factory=list)  # with the turn that is under way
    aside: list[Settle] = field(default_factory=list)  # what needs no run, and could not be settled yet
    avoided: deque[float] = field(default_factory=deque)  # until when rows are left alone that cannot be claimed
    summed: float = -AVOIDED  # when it was last said that there are more of them than are named
    locked: bool = False  # somebody else had a lock on a row that was to be settled
    split: bool = False  # the turn did not claim all that it could
    again: bool = False  # jobs of rows came when they were last asked for: there may be more
    hurried: ClassVar[tuple[type[DatabaseError], ...]] = (Locked,)

    @classmethod
    def open(
        cls,
        engine: Engine,
        row: WorkerId,
        doubt: Callable[[WorkerId, int], None],
        source: Source,
        worker_name: str,
        *,
        tells: bool,
    ) -> RowLane:
        """On a connection of its own."""
        return cls(engine, engine.session("rows"), row, doubt, tells=tells, source=source, worker_name=worker_name)

    async def turn(self, ask: Ask | None, settles: Sequence[Settle] = ()) -> Turn:
        """As of any lane. Rows that are gone, and rows whose output is there, are settled here and not run."""
        began = time.monotonic()
        if self.place is not None and began - self.looked > max(LOOK, SHARE * self.looks):
            self.place = None
        whole = self.place is None
        turn = await self._around(ask, [*self.aside, *settles])
        if ask and whole:
            self.looked, self.looks = began, time.monotonic() - began
        came, self.came = self.came, []
        running = [job for job, taken in came if _runs(job, taken)]
        turn = turn._replace(claimed=running, picked=max(len(came), turn.picked))
        self.aside = [each for each in self.aside if each.lease.job_id in turn.later]
        aside = self._set_aside([(job, taken) for job, taken in came if not _runs(job, taken)])
        if not aside:
            return turn
        try:
            await Lane.turn(self, None, aside)
        except DatabaseError as error:  # those that run are not to be lost with it
            self.aside += aside
            log.warning("What needs no run is settled with the next turn: %s", error)
        return turn

    async def _around(self, ask: Ask | None, settles: Sequence[Settle]) -> Turn:
        """A turn in which one row that is locked or refused by its table keeps no other."""
        later = await self._locked(settles) if self.locked else frozenset()
        self.split = False
        try:
            turn = await Lane.turn(self, ask, _without(settles, later))
        except Locked:
            later = await self._locked(settles)
            if ask:
                await self._put_off(ask, "is locked by somebody else", LOCKED)
            turn = await Lane.turn(self, ask, _without(settles, later))
        except PASSING:
            raise
        except DatabaseError as error:  # a trigger or a constraint of that table
            if now := _without(settles, later):
                turn = await self._one_by_one(now, error)
            elif ask is None:
                raise
            else:
                turn = await self._one_only(ask)
        self.locked = bool(later)
        return turn._replace(later=later, picked=ask.limit if ask and self.split else 0)

    async def _locked(self, settles: Sequence[Settle]) -> frozenset[JobId]:
        return await self.session.arun(adopted.held(self.source, settles))

    async def _one_only(self, ask: Ask) -> Turn:
        """The table refuses the claim of some row: one at a time, until it is the culprit's turn, who is left alone. A
        new row gets a job for that: so nobody takes it, and nothing has to be remembered here."""
        self.split, self.place = True, None
        self.ladders.forget()
        one = replace(ask, limit=1)
        first = await self.session.arun(adopted.first(self.source))
        try:
            return await Lane.turn(self, one)
        except PASSING:
            raise
        except DatabaseError as refused:
            why, seconds = f"cannot be claimed: {refused}", self._avoid(time.monotonic())
            if not await self._put_off(one, why, seconds):
                if first is None:
                    raise
                await self.session.arun(adopted.put_off(self.source, first, seconds))
                self._tell_of(printable(first), why)
        return Turn([], None)

    def _avoid(self, now: float) -> float:
        """One more row cannot be claimed: for how many seconds it is left alone."""
        while self.avoided and self.avoided[0] <= now:
            self.avoided.popleft()
        seconds = min(max(AVOIDED, SPARED * len(self.avoided)), LONGEST)
        self.avoided.append(now + seconds)
        return seconds

    def _tell_of(self, row: str, why: str) -> None:
        """In the log, as long as they are not too many."""
        if len(self.avoided) <= NAMED:
            log.warning("Row %s of %s %s", row, self.source.name, why)
        elif (now := time.monotonic()) - self.summed >= AVOIDED:
            self.summed = now
            log.warning("More rows of %s than these %d cannot be claimed, and are not named", self.source.name, NAMED)

    async def _put_off(self, ask: Ask, why: str, seconds: float) -> bool:
        """Jobs that are due and whose rows cannot be written: they are due later, attempt not used."""
        want = self._want(ask)._replace(ranges=[(*key, *START) for key in self._ranges(ask)])
        try:
            claimed = (await self.session.arun(adopted.due(self.source, want))).claimed
            releases = [Settle(job.lease, Back(Way.RELEASE), key=taken_of(job).key) for job in claimed]
            locked = await self._locked(releases) if seconds == LOCKED else {job.id for job in claimed}
            for n, each in enumerate(releases):
                if each.lease.job_id in locked:
                    releases[n] = each._replace(change=Back(Way.RELEASE, seconds))
                    self._tell_of(_named(each.key or ()), why)
            if releases:
                await self.session.arun(adopted.settle(self.source, [each._replace(key=None) for each in releases]))
        except BaseException:
            self.doubt(self.worker, want.number)  # what it took is handed back with the next beat
            raise
        return bool(claimed)

    async def _one_by_one(self, settles: Sequence[Settle], error: DatabaseError) -> Turn:
        self.split = self.split or bool(settles)
        return await Lane._one_by_one(self, settles, error)

    async def _alone(self, settle: Settle, culprits: set[JobId]) -> Turn:
        """If its table refuses even that it failed, the row is left as it is, and its job alone says so."""
        try:
            return await self.session.arun(self._converse(None, [settle]))
        except PASSING:
            raise
        except DatabaseError as error:
            failed = culprit(settle, error)
        culprits.add(settle.lease.job_id)
        try:
            return await self.session.arun(self._converse(None, [failed]))
        except PASSING:
            raise
        except DatabaseError as error:
            log.error("Row %s of %s cannot be written: %s", _named(settle.key or ()), self.source.name, error)
            assert isinstance(failed.change, Done)
            alone = failed._replace(key=None, change=failed.change._replace(hook_error=UNWRITTEN))
            return await self.session.arun(self._converse(None, [alone]))

    def _set_aside(self, those: Sequence[tuple[Claimed, Taken]]) -> list[Settle]:
        settles = []
        for job, taken in those:
            if job.finishing >= CANCELLING:
                log.info("Row %s of %s was cancelled", _named(taken.key), self.source.name)
                key = None if taken.row is None else taken.key
                settles.append(Settle(job.lease, Done(JobState.CANCELLED), attempt=job.attempts, key=key))
            elif taken.row is None:
                log.info(
                    "Row %s of %s is gone, or was finished by somebody else: left as it is",
                    _named(taken.key),
                    self.source.name,
                )
                settles.append(Settle(job.lease, SUCCESS, attempt=job.attempts))
            else:
                log.warning(
                    "Row %s of %s has its output already: a duplicate was prevented",
                    _named(taken.key),
                    self.source.name,
                )
                settles.append(Settle(job.lease, SUCCESS, attempt=job.attempts, key=taken.key))
        return settles

    def _converse(
        self, want: Want | None, settles: Sequence[Settle] = (), events: Sequence[str] = ()
    ) -> Operation[Turn]:
        room = Room(want, self.worker_name, self.place) if want else None
        return adopted.turn(self.source, room, settles, events)

    def _ranges(self, ask: Ask) -> Sequence[Key]:
        return [(self.source.name, rank) for rank in RANKS]

    def _want(self, ask: Ask) -> Want:
        """Where new rows are many, they alone: jobs of rows are asked for once in a tick, and as long as some come."""
        if not self._new_alone(ask):
            return Lane._want(self, ask)
        self.asked = True
        return Want(self.worker, self._number(), ask.limit, (), ask.suspects)

    def _new_alone(self, ask: Ask) -> bool:
        now = time.time() + self.ahead
        many = self.place is not None and not self.again
        return many and self.engine.can.cursor and self.ladders.rests(self._ranges(ask), now)

    def _learn(self, want: Want | None, turn: Turn, asked_at: float) -> None:
        """Rows that had a job before move the cursors of the queue, new ones the place in the table."""
        if want is None:
            return
        self.came = [legible(job) for job in turn.claimed]
        places = [taken.place for _, taken in self.came if taken.place is not None]
        again = [job for job, taken in self.came if taken.place is None] if want.ranges else []
        self.again = bool(again)
        Lane._learn(self, want, turn._replace(claimed=again), asked_at)
        self.note(job.id for job in turn.claimed)
        full = len(turn.claimed) >= want.limit
        if not (full or want.ranges):  # jobs of rows were not asked for, and now there is room for them
            self.split = True
            self.ladders.ask_all()
        last = places[-1] if places and full else None
        self.place = [str(part) for part in last] if last is not None and None not in last else None


def _runs(job: Claimed, taken: Taken) -> bool:
    """The row is there, its output is not, and nobody has cancelled it."""
    return taken.row is not None and not taken.done and job.finishing < CANCELLING


def _without(settles: Sequence[Settle], those: Collection[JobId]) -> list[Settle]:
    return [each for each in settles if each.lease.job_id not in those]


def _named(key: Sequence[object]) -> str:
    return printable(", ".join(map(str, key)))


@dataclass(slots=True)
class RowWatch:
    """Looks for new rows while nobody tells of them, and for what was left behind."""

    engine: Engine
    source: Source
    is_idle: Callable[[], bool]
    woken: Callable[[], None]
    minded: float = 0.0
    sooner: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            self.sooner.clear()
            try:
                await self.run_once(time.monotonic())
            except DibsError as error:
                log.warning("A look at %s failed: %s", self.source.name, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.source.poll):
                    await self.sooner.wait()

    async def run_once(self, now: float) -> None:
        """One look."""
        if now - self.minded >= max(OFTEN, min(SELDOM, self.source.stuck_after / 5)):
            self.minded = now
            if await mind(self.engine.arun_once, self.source):
                self.woken()  # it had their jobs locked: whoever was to claim them may have passed over them
        if self.is_idle() and await self.engine.arun_once(adopted.waiting(self.source)):
            self.woken()


async def mind(run: Callable[[Operation[int]], Awaitable[int]], source: Source) -> int:
    """Rows of dead workers wait again, and say so; rows without a lease are watched. How many wait again."""
    mended = await run(adopted.mend(source))
    noticed = await run(adopted.notice(source))
    if noticed:
        log.info(
            "%d rows of %s run without a lease of ours: each is taken over if it still does in %g s",
            noticed,
            source.name,
            source.stuck_after,
        )
    return mended
