"""A lane: one connection on which a worker takes its turns, and what it remembers from one turn to the next.

It keeps the cursors, numbers the claims, and knows what a lost answer means: settles are sent again alone, the claim
is in doubt until the next beat hands it back.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import getrandbits

from dibs.engines.engine import Engine, Patience, Session
from dibs.errors import Conflict, ConnectionLost, Refused, Unreachable
from dibs.job import LEVELS, Claimed, JobId, JobState, WorkerId
from dibs.ladder import START, Key, Ladders, Place, Read, ranges
from dibs.lifecycle import Done, failure
from dibs.operations import claims, jobs
from dibs.operations.claims import CLAIM_BITS, Settle, Turn, Want
from dibs.payload import encode

EVENTS_EVERY = 0.05  # seconds between notifications of one lane: each takes a lock of the whole cluster


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
    asked: bool = True  # since somebody last looked

    async def turn(self, ask: Ask | None, settles: Sequence[Settle] = ()) -> Turn:
        """Settle what is done, claim what is next. Waits through short outages; never loses a settle."""
        patience: Patience | None = None
        self.note(settle.lease.job_id for settle in settles)
        while True:
            want = self._want(ask) if ask else None
            events = self._events()
            try:
                turn = await self.session.arun(claims.turn(want, settles, events))
                self._learn(want, turn, told=bool(events))
                return turn
            except (Conflict, Unreachable) as error:
                patience = patience or Patience(claims.settle(()), self.engine.deadline, reached=self.engine.reached)
                await sleep(patience.pause(error))
            except ConnectionLost:
                self.ladders.forget()
                if want:
                    self.doubt(self.worker, want.number)
                return await self.engine.arun(claims.settle(settles))
            except Refused as error:
                return await self._one_by_one(settles, error)

    async def flush_events(self) -> None:
        """Tell what is still untold; for when no turn follows."""
        events, self.events = self.events, {}
        for payload in claims.events_payload(events):
            await self.engine.arun(jobs.notify("job_events", payload))

    def has_asked(self) -> bool:
        """Whether it has claimed since this was last called."""
        asked, self.asked = self.asked, False
        return asked

    def _want(self, ask: Ask) -> Want:
        self.asked = True
        self.number = (self.number + 1) % (1 << CLAIM_BITS)
        keys = ranges(tuple(ask.queues), last=ask.at_once, coin=bool(getrandbits(1)))
        if self.engine.can.cursor:
            asked = self.ladders.ask(keys, time.time() + self.ahead)
        else:
            asked = [(*key, *START) for key in keys]
        return Want(self.worker, self.number, ask.limit, asked, ask.suspects, ask.unknown)

    def _learn(self, want: Want | None, turn: Turn, *, told: bool) -> None:
        if told:
            self.told_at = time.monotonic()
            self.events.clear()
        self.note(job.id for job in turn.claimed)
        if want is None or not isinstance(turn.clock, datetime):
            return
        self.ahead = turn.clock.timestamp() - time.time()
        suspects = {(job.queue, job.rank % LEVELS) for job in turn.claimed if job.suspect}
        read = Read(turn.clock, want.limit, turn.picked, _last(turn.claimed), turn.paused, suspects)
        self.ladders.took([(queue, rank) for queue, rank, *_ in want.ranges], read)

    def note(self, ids: Iterable[int]) -> None:
        """They changed."""
        if self.engine.can.notifies:
            self.events.update(dict.fromkeys(ids))

    def _events(self) -> list[str]:
        """What to tell with this turn: everything, at most every EVENTS_EVERY."""
        return claims.events_payload(self.events) if time.monotonic() - self.told_at >= EVENTS_EVERY else []

    async def _one_by_one(self, settles: Sequence[Settle], error: Refused) -> Turn:
        """The database refuses the data of one job: split the turn, and only the culprit becomes FAILED."""
        answers: list[Turn] = []
        culprits: set[JobId] = set()
        for settle in settles:
            try:
                answers.append(await self.engine.arun(claims.settle([settle])))
            except Refused as refused:
                culprits.add(settle.lease.job_id)
                answers.append(await self.engine.arun(claims.settle([_culprit(settle, refused)])))
        if not answers:
            raise error
        lost = frozenset().union(*(answer.lost for answer in answers))
        before = {job_id: state for answer in answers for job_id, state in answer.before.items()}
        return answers[-1]._replace(lost=lost, before=before, culprits=frozenset(culprits))


def _last(claimed: Sequence[Claimed]) -> dict[Key, Place]:
    """Where each range was read up to; a suspect was read from a range of its own."""
    ends = {(job.queue, job.rank): job for job in claimed}
    return {key: Place(job.run_at, job.id) for key, job in ends.items() if not job.suspect}


def _culprit(settle: Settle, error: Refused) -> Settle:
    entry = encode(failure(settle.attempt, f"The outcome of this job could not be stored: {error}"))
    return settle._replace(change=Done(JobState.FAILED, failure=entry))
