"""A lane for the rows of one adopted table: its own turns, a place in the table's own order, and looks at what was left
behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dibs.engines.engine import Engine
from dibs.errors import Conflict, ConnectionLost, DatabaseError, DeadlineExceeded, DibsError, Unreachable
from dibs.job import Claimed, JobId, JobState, WorkerId
from dibs.ladder import Key
from dibs.lifecycle import CANCELLING, SUCCESS, Done
from dibs.operations import adopted
from dibs.operations.adopted import RANKS, Room, Source, Taken, taken_of
from dibs.operations.claims import Settle, Turn, Want
from dibs.operations.operation import Operation
from dibs.worker.lane import Ask, Lane, culprit

log = logging.getLogger("dibs")

LOOK = 1.0  # seconds between readings of the table from its beginning, while there is something to do
SHARE = 20  # and so many times as long as the last one took, at least
PASSING = (Conflict, ConnectionLost, DeadlineExceeded, Unreachable)  # the next try may go through
OFTEN, SELDOM = 1.0, 60.0  # seconds between looks at what was left behind


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
        settles = [*self.aside, *settles]
        try:
            turn = await Lane.turn(self, ask, settles)
        except PASSING:
            raise
        except DatabaseError as error:  # a trigger or a constraint of that table: it must not keep the others
            turn = await self._one_by_one(settles, error)
        if ask and whole:
            self.looked, self.looks = began, time.monotonic() - began
        came, self.came = self.came, []
        self.aside = self._set_aside([(job, taken) for job, taken in came if not _runs(job, taken)])
        if not self.aside:
            return turn._replace(picked=len(came))
        try:
            await Lane.turn(self, None, self.aside)
            self.aside = []
        except DatabaseError as error:  # those that run are not to be lost with it
            log.warning("What needs no run is settled with the next turn: %s", error)
        return turn._replace(claimed=[job for job, taken in came if _runs(job, taken)], picked=len(came))

    async def _alone(self, settle: Settle, culprits: set[JobId]) -> Turn:
        """If its table refuses even that it failed, the row is left as it is, and its job alone says so."""
        try:
            return await self.engine.arun(self._converse(None, [settle]))
        except PASSING:
            raise
        except DatabaseError as error:
            failed = culprit(settle, error)
        culprits.add(settle.lease.job_id)
        try:
            return await self.engine.arun(self._converse(None, [failed]))
        except PASSING:
            raise
        except DatabaseError as error:
            log.error("Row %s of %s cannot be written: %s", _named(settle.key or ()), self.source.name, error)
            return await self.engine.arun(self._converse(None, [failed._replace(key=None)]))

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

    def _learn(self, want: Want | None, turn: Turn, asked_at: float) -> None:
        """Rows that had a job before move the cursors of the queue, new ones the place in the table."""
        if want is None:
            return
        self.came = [(job, taken_of(job)) for job in turn.claimed]
        new = [taken.place for _, taken in self.came if taken.place is not None]
        again = [job for job, taken in self.came if taken.place is None]
        Lane._learn(self, want, turn._replace(claimed=again), asked_at)
        self.note(job.id for job in turn.claimed)
        full = len(turn.claimed) >= want.limit
        last = new[-1] if new and full else None
        self.place = [str(part) for part in last] if last is not None and None not in last else None


def _runs(job: Claimed, taken: Taken) -> bool:
    """The row is there, its output is not, and nobody has cancelled it."""
    return taken.row is not None and not taken.done and job.finishing < CANCELLING


def _named(key: Sequence[object]) -> str:
    return ", ".join(map(str, key))


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
            await mind(self.engine, self.source)
        if self.is_idle() and await self.engine.arun(adopted.waiting(self.source)):
            self.woken()


async def mind(engine: Engine, source: Source) -> None:
    """Rows of dead workers wait again, and say so; rows without a lease are watched."""
    await engine.arun(adopted.mend(source))
    noticed = await engine.arun(adopted.notice(source))
    if noticed:
        log.info(
            "%d rows of %s run without a lease of ours: each is taken over if it still does in %g s",
            noticed,
            source.name,
            source.stuck_after,
        )
