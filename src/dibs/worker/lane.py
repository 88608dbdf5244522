"""A lane: one connection on which a worker takes its turns, and what it remembers from one turn to the next.

It keeps the cursors, numbers the claims, and knows what a lost answer means: settles are sent again alone, the claim
is in doubt until the next beat hands it back.
"""

from __future__ import annotations

import logging
import time
from asyncio import Task, create_task, sleep
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import getrandbits
from typing import ClassVar

from dibs.engines.engine import Engine, Patience, Session
from dibs.errors import Conflict, ConnectionLost, DatabaseError, DibsError, Refused, Unreachable
from dibs.job import LEVELS, Claimed, JobId, JobState, WorkerId
from dibs.ladder import Key, Ladders, Place, Read, ranges
from dibs.lifecycle import Done, failure
from dibs.operations import claims, jobs
from dibs.operations.claims import CLAIM_BITS, Settle, Turn, Want
from dibs.operations.operation import Operation
from dibs.payload import encode

log = logging.getLogger("dibs")

EVENTS_EVERY = (
    0.1  # seconds between notifications of one lane: each takes a lock of the whole cluster, and wakes all who listen
)
NO_TURN = 0.025  # seconds more, and who waits to be told of is told of without a turn


@dataclass(frozen=True, slots=True)
class Ask:
    """What a worker wants next. `at_once`: it starts all it takes, so jobs on their last attempt may come too."""

    queues: Sequence[str]
    limit: int
    suspects: int = 1
    at_once: bool = True
    unknown: Sequence[str] = ()


@dataclass(slots=True)
class Lane:
    """Turns on one connection, for one row of `workers`."""

    engine: Engine
    session: Session
    worker: WorkerId
    doubt: Callable[[WorkerId, int], None]
    ladders: Ladders = field(default_factory=Ladders)
    number: int = 0
    ahead: float = 0.0  # the database's clock less our own
    events: dict[int, None] = field(default_factory=dict)  # who changed since we last told; each once, in order
    told_at: float = 0.0
    tells: bool = True  # of what it changed
    asked: bool = True  # since somebody last looked
    alone: bool = True  # tells without a turn too, when none comes; needs a running loop
    telling: Task[None] | None = None
    hurried: ClassVar[tuple[type[DatabaseError], ...]] = ()  # errors after which nobody waits here

    async def turn(self, ask: Ask | None, settles: Sequence[Settle] = ()) -> Turn:
        """Settle what is done, claim what is next. Waits through short outages; never loses a settle."""
        patience: Patience | None = None
        changing = [settle.lease.job_id for settle in settles] if self.engine.can.notifies else []
        while True:
            want = self._want(ask) if ask else None
            told = self._to_tell(changing)
            asked_at = time.time()
            try:
                turn = await self.session.arun(self._converse(want, settles, claims.events_payload(told)))
                self._learn(want, turn, asked_at)
                self.note([] if told else changing)
                return turn
            except (Conflict, Unreachable) as error:
                self._untold(told, changing)
                if isinstance(error, self.hurried):
                    raise
                patience = patience or Patience(self._converse(None), self.engine.deadline, reached=self.engine.reached)
                await sleep(patience.pause(error))
            except ConnectionLost:
                self._untold(told, changing)
                self.ladders.forget()
                if want:
                    self.doubt(self.worker, want.number)
                turn = await self.engine.arun(self._converse(None, settles))
                self.note(changing)
                return turn
            except Refused as error:
                self._untold(told, changing)
                turn = await self._one_by_one(settles, error)
                self.note(changing)
                return turn

    async def aclose(self) -> None:
        """Tell what is still untold, and close the connection."""
        if self.telling is not None:
            self.telling.cancel()
        await self._tell()
        await self.session.aclose()

    async def _tell_later(self) -> None:
        """Tell what no turn has told, until there is nothing left."""
        while self.events:
            await sleep(max(0.0, self.told_at + EVENTS_EVERY + NO_TURN - time.monotonic()))
            if time.monotonic() - self.told_at >= EVENTS_EVERY:
                await self._tell()
        self.telling = None

    async def _tell(self) -> None:
        events, self.events = self.events, {}
        self.told_at = time.monotonic()
        try:
            for payload in claims.events_payload(events):
                await self.engine.arun_once(jobs.notify("job_events", payload))
        except DibsError as error:
            log.info("Nobody was told of %d jobs that changed: %s", len(events), error)

    def has_asked(self) -> bool:
        """Whether it has claimed since this was last called."""
        asked, self.asked = self.asked, False
        return asked

    def _converse(
        self, want: Want | None, settles: Sequence[Settle] = (), events: Sequence[str] = ()
    ) -> Operation[Turn]:
        return claims.turn(want, settles, events)

    def _ranges(self, ask: Ask) -> Sequence[Key]:
        return ranges(tuple(ask.queues), last=ask.at_once, coin=bool(getrandbits(1)))

    def _want(self, ask: Ask) -> Want:
        self.asked = True
        keys = self._ranges(ask)
        asked = self.ladders.ask(keys, time.time() + self.ahead) if self.engine.can.cursor else keys
        return Want(self.worker, self._number(), ask.limit, asked, ask.suspects, ask.unknown)

    def _number(self) -> int:
        self.number = (self.number + 1) % (1 << CLAIM_BITS)
        return self.number

    def _learn(self, want: Want | None, turn: Turn, asked_at: float) -> None:
        self.note(job.id for job in turn.claimed)
        if want is None or not isinstance(turn.clock, datetime):
            return
        self.ahead = turn.clock.timestamp() - asked_at  # its clock was read when the turn arrived, not when it answered
        suspects = {(job.queue, job.rank % LEVELS) for job in turn.claimed if job.suspect}
        read = Read(turn.clock, want.limit, turn.picked, _last(turn.claimed), turn.paused, suspects)
        self.ladders.took([(queue, rank) for queue, rank, *_ in want.ranges], read)

    def note(self, ids: Iterable[int]) -> None:
        """They changed."""
        if self.tells and self.engine.can.notifies:
            self.events.update(dict.fromkeys(ids))
            if self.events and self.alone and self.telling is None:
                self.telling = create_task(self._tell_later(), name="tell")

    def _to_tell(self, changing: Sequence[int]) -> dict[int, None]:
        """Whom to tell of with this turn: everyone, those included that it changes; at most every EVENTS_EVERY."""
        if not (self.tells and self.engine.can.notifies) or time.monotonic() - self.told_at < EVENTS_EVERY:
            return {}
        told = self.events | dict.fromkeys(changing)
        if told:
            self.events, self.told_at = {}, time.monotonic()
        return told

    def _untold(self, told: dict[int, None], changing: Sequence[int]) -> None:
        """The turn failed: those that it was to change have not changed, the others are still to be told of."""
        if told:
            self.told_at = 0.0
            self.note(told.keys() - set(changing))

    async def _one_by_one(self, settles: Sequence[Settle], error: DatabaseError) -> Turn:
        """The database refuses the data of one job: split the turn, and only the culprit becomes FAILED."""
        answers: list[Turn] = []
        culprits: set[JobId] = set()
        for settle in settles:
            answers.append(await self._alone(settle, culprits))
        if not answers:
            raise error
        lost = frozenset().union(*(answer.lost for answer in answers))
        before = {job_id: state for answer in answers for job_id, state in answer.before.items()}
        return answers[-1]._replace(lost=lost, before=before, culprits=frozenset(culprits))

    async def _alone(self, settle: Settle, culprits: set[JobId]) -> Turn:
        try:
            return await self.engine.arun(self._converse(None, [settle]))
        except Refused as refused:
            culprits.add(settle.lease.job_id)
            return await self.engine.arun(self._converse(None, [culprit(settle, refused)]))


def _last(claimed: Sequence[Claimed]) -> dict[Key, Place]:
    """Where each range was read up to; a suspect was read from a range of its own."""
    ends = {(job.queue, job.rank): job for job in claimed}
    return {key: Place(job.run_at, job.id) for key, job in ends.items() if not job.suspect}


def culprit(settle: Settle, error: DatabaseError) -> Settle:
    """It becomes FAILED instead, and says why."""
    entry = encode(failure(settle.attempt, f"The outcome of this job could not be stored: {error}"))
    return settle._replace(change=Done(JobState.FAILED, failure=entry))
