"""Owning jobs: settle what is done, claim what is next, in one turn. Every write-back names its lease."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from random import getrandbits
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from dibs.errors import InvalidOption
from dibs.job import CODES, STATES, Claimed, JobId, JobState, Lease, WorkerId
from dibs.lifecycle import SUCCESS, Back, Change, Done, Way
from dibs.operations.operation import Conversation, Grouped, Operation, Row, Rows, Statement, Table, operation
from dibs.operations.rows import claimed_from_rows
from dibs.payload import decode

RETENTION_DAYS = 7
MAX_CLAIM = 10_000
CLAIM_BITS = 20  # of the number that marks a claim within its worker
RANDOM_BITS = 20  # of a token, beside its counter: a counter may come back, after a restore or on a promoted standby
EVENTS_BYTES = 7_900  # PostgreSQL's limit for a notification is 8,000

RANGES = ("queue", "rank", "at", "id")
DONE = ("id", "token", "state", "days", "result", "failure", "hook_error")
BACK = ("id", "token", "way", "delay", "failure")

PLAIN = (CODES[JobState.SUCCESSFUL], RETENTION_DAYS, None, None, None)  # most jobs: only their leases are sent
_lease, _lease_of_row = itemgetter(0), itemgetter(0, 1)

Range: TypeAlias = tuple[str, int] | tuple[str, int, Any, int]
"""Queue, rank, and on engines with a cursor the place to start after."""


class Settle(NamedTuple):
    """A change to a job of ours, with the proof."""

    lease: Lease
    change: Change
    days: int = RETENTION_DAYS
    attempt: int = 0  # for what is said if the change cannot be stored
    key: Sequence[Any] | None = None  # of an adopted row that is to be written too


class Want(NamedTuple):
    """What to claim: for whom, how many, from which ranges; `number` tells this claim from the worker's others."""

    worker: WorkerId | int
    number: int
    limit: int
    ranges: Sequence[Range]
    suspects: int = 1
    unknown: Sequence[str] = ()


DOCUMENTS = ("result", "failure")
NOTHING: dict[str, Any] = {  # what a turn says that neither claims nor settles
    "worker": 0,
    "claim": 0,
    "bits": 0,
    "limit": 0,
    "suspects": 0,
    "unknown": [],
    "ranges": Table(RANGES, ()),
    "ranks": Grouped(()),
    "settles": 0,
    "done": Table(DONE, (), DOCUMENTS),
    "days": RETENTION_DAYS,
    "expected": 0,
    "first": None,
    "last": None,
    "leases": {},
    "special": Table(DONE, (), DOCUMENTS),
    "back": Table(BACK, (), ("failure",)),
    "events": None,
    "rows": False,  # of adopted tables are taken by those who know them
    "claim_alone": False,
    "plain_alone": False,
    "plain": False,
    "whole": False,
}


NO_QUEUES: frozenset[str] = frozenset()


class Turn(NamedTuple):
    """What a turn did. `lost`: leases that were refused. `before`: settled already by the same lease, to that state.
    `culprits`: their outcome could not be stored, and they are FAILED instead. `picked`: jobs that the claim found;
    where another was quicker, fewer were claimed. `unwritten`: settled, but their adopted rows were not as a claim
    leaves them any more, and stay as they are. `later`: not settled yet, since others have locked their rows."""

    claimed: list[Claimed]
    clock: Any
    paused: frozenset[str] = NO_QUEUES
    lost: frozenset[JobId] = frozenset()
    before: Mapping[JobId, JobState] = MappingProxyType({})
    culprits: frozenset[JobId] = frozenset()
    picked: int = 0
    unwritten: frozenset[JobId] = frozenset()
    later: frozenset[JobId] = frozenset()

    @property
    def went_well(self) -> bool:
        """Every settle in it came to what was said."""
        return not (self.lost or self.before or self.culprits or self.later)

    def became(self, job_id: JobId, change: Change) -> Change | None:
        """What a settle in it came to; None when it was refused."""
        if self.went_well:  # most
            return change
        if job_id in self.lost:
            return None
        if job_id in self.culprits:
            return Done(JobState.FAILED)
        return _as_before(self.before[job_id], change) if job_id in self.before else change


def _as_before(state: JobState, change: Change) -> Change:
    if state.final:
        return Done(state)
    if state is JobState.PROCESSING:
        return Back(Way.SUBMITTED)
    return change if isinstance(change, Back) else Back(Way.RETRY)


@operation()
def turn(want: Want | None, settles: Sequence[Settle] = (), events: Sequence[str] = ()) -> Conversation[Turn]:
    """Settle first, then claim, in one round trip and one commit.

    A turn whose answer was lost is not simply repeated: its settles are sent again alone (found settled counts as done)
    and its claim is in doubt until the worker's next beat hands it back.
    """
    rows = yield Statement("turn", **turn_values(want, settles, events))
    return turn_from_rows(rows)


def turn_values(want: Want | None, settles: Sequence[Settle], events: Sequence[str]) -> dict[str, Any]:
    """What a turn says, by name."""
    values = NOTHING | {"events": "\n".join(events)} if events else NOTHING.copy()
    if want is not None:
        values.update(_claim_values(want))
    plain_only = True
    if settles:
        plain = sorted([each.lease for each in settles if each.change is SUCCESS and each.days == RETENTION_DAYS])
        plain_only = len(plain) == len(settles)
        values.update(_settle_values(settles, plain, plain_only))
    values[_shape(want is not None, bool(settles), plain_only)] = True
    return values


def _shape(claims: bool, settles: bool, plain_only: bool) -> str:
    """What kind of turn it is: most say little."""
    if not plain_only:
        return "whole"
    if not claims:
        return "plain_alone"
    return "plain" if settles else "claim_alone"


def _claim_values(want: Want) -> dict[str, Any]:
    if not 0 < want.limit <= MAX_CLAIM:
        raise InvalidOption("limit", f"must be between 1 and {MAX_CLAIM:,}, not {want.limit}")
    return {
        "worker": want.worker,
        "claim": want.number,
        "bits": getrandbits(RANDOM_BITS),
        "limit": want.limit,
        "suspects": min(want.suspects, want.limit),
        "unknown": list(want.unknown),
        "ranges": Table(RANGES, want.ranges),
        "ranks": Grouped(want.ranges),
    }


def _settle_values(settles: Sequence[Settle], plain: list[Lease], plain_only: bool) -> dict[str, Any]:
    special, back = ([], []) if plain_only else _not_plain(settles)
    done = sorted([(*lease, *PLAIN) for lease in plain] + special, key=_lease_of_row) if special else plain
    values = {
        "settles": len(settles),
        "done": Table(DONE, done, DOCUMENTS),
        "expected": len(done) + bool(special),  # rows in history, if all is well; with special ones, one cannot tell
        "leases": {row[0]: row[1] for row in done},
    }
    if done:
        values["first"], values["last"] = done[0][0], done[-1][0]
    if not plain_only:
        values["special"], values["back"] = Table(DONE, special, DOCUMENTS), Table(BACK, back, ("failure",))
    return values


def _not_plain(settles: Sequence[Settle]) -> tuple[list[Row], list[Row]]:
    """Those with more to say than their leases: final ones, and those that go back to waiting."""
    special: list[Row] = []
    back: list[Row] = []
    for lease, change, days, _attempt, _key in sorted(settles, key=_lease):
        if isinstance(change, Back):
            back.append((*lease, int(change.way), change.delay, change.failure))
        elif change is not SUCCESS or days != RETENTION_DAYS:
            special.append((*lease, CODES[change.state], days, change.result, change.failure, change.hook_error))
    return special, back


@operation(atomic=True)
def claim_numbered(want: Want) -> Conversation[Turn | None]:
    """A claim of a worker whose row counts its claims (over HTTP); None when it has asked again since.

    Then nobody waits for this answer any more, and what it took would belong to a worker that does not know of it.
    """
    if not (yield Statement("still_asks", worker=want.worker, claim=want.number)):
        return None
    return (yield from turn(want))


def settle(settles: Sequence[Settle], events: Sequence[str] = ()) -> Operation[Turn]:
    """Settle alone."""
    return turn(None, settles, events)


def turn_from_rows(rows: Rows) -> Turn:
    """The head row, in the columns of a job, then what was claimed."""
    picked, _, paused, unsettled, _, _, _, _, clock, _, _ = rows[0]
    names = frozenset(decode(paused)) if paused else NO_QUEUES
    turn = Turn(claimed_from_rows(rows[1:]), clock, names, picked=picked or len(rows) - 1)
    if unsettled is None:
        return turn
    states = {JobId(int(job)): state for job, state in decode(unsettled).items()}
    return turn._replace(
        lost=frozenset(job for job, state in states.items() if state is None),
        before={job: STATES[state] for job, state in states.items() if state is not None},
    )


@operation(reads=True)
def next_due(queues: Sequence[str]) -> Conversation[float | None]:
    """Seconds until something can be claimed; 0 when it can be now, None when there is nothing."""
    rows = yield Statement("next_due", queues=list(queues))
    return None if rows[0][0] is None else float(rows[0][0])


class Upcoming(NamedTuple):
    """The queues that there are, and the seconds until something in them can be claimed; None when there is nothing."""

    queues: list[str]
    seconds: float | None


@operation(reads=True)
def upcoming(queues: Sequence[str], places: Sequence[Range] = (), *, every: bool = True) -> Conversation[Upcoming]:
    """What to expect in these queues, and in every other one if wanted."""
    rows = yield Statement("upcoming", queues=list(queues), every=every, places=Table(RANGES, places))
    return Upcoming([row[0] for row in rows], min((float(row[1]) for row in rows if row[1] is not None), default=None))


@operation(reads=True)
def available(queues: Sequence[str], most: int) -> Conversation[int]:
    """How many jobs could be claimed now, up to `most`."""
    rows = yield Statement("available", queues=list(queues), most=most)
    return int(rows[0][0])


def events_payload(ids: Collection[int]) -> list[str]:
    """Identity, not state: the notifications that name these jobs, each under the limit.

    >>> events_payload([7]), events_payload([7, 8])
    (['{"jobId":7}'], ['{"jobIds":[7,8]}'])
    """
    if len(ids) <= 1:
        return [f'{{"jobId":{job_id}}}' for job_id in ids]
    texts = list(map(str, ids))
    fit = EVENTS_BYTES // (1 + max(map(len, texts)))
    return [f'{{"jobIds":[{",".join(texts[n : n + fit])}]}}' for n in range(0, len(texts), fit)]
