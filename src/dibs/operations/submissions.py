"""What is handed to a provider: noted before it is asked, accepted once, concluded together with its job."""

from __future__ import annotations

from typing import NamedTuple

from dibs.errors import LeaseLost
from dibs.job import JobId, Lease
from dibs.operations import claims
from dibs.operations.claims import Settle, Turn
from dibs.operations.operation import Conversation, Row, Statement, operation
from dibs.provider import digest

DEAD_DAYS = 90  # what failed is kept as long as its job
OPEN_DAYS = 400  # what has not ended; no provider may take as long


class Begun(NamedTuple):
    """What is known of a submission when somebody is about to submit. `tried`: somebody was before, and the provider
    may have accepted. `answer`: it has, and called back."""

    round: int
    key: str
    tried: bool
    task_id: str | None
    answer: bytes | str | None = None


class Accepted(NamedTuple):
    """What became of an acceptance. `taken_by`: the id is that of another job's submission. `noted`: it counts.
    `second`: another id counts, and this one is kept for people. `processing`: the job waits for the provider."""

    taken_by: int | None
    noted: bool
    second: bool
    processing: bool


class Submission(NamedTuple):
    """A job's last submission; `age`: seconds since it was accepted."""

    round: int
    key: str
    tried: bool
    task_id: str | None
    answer: bytes | str | None
    age: float | None
    open: bool


class Ending(NamedTuple):
    """How a submission ends. `open`: it is gone on with when a person retries the job."""

    outcome: str
    usage: bytes | None = None
    open: bool = False


@operation(atomic=True)
def begin(lease: Lease, type: str, key: str) -> Conversation[Begun]:
    """Somebody is about to submit; `key` is taken if there is none yet. Refused when the lease is lost."""
    ours = {"id": lease.job_id, "token": lease.token}
    rows = yield Statement("begin_submission", **ours, type=type, key=key, days=OPEN_DAYS)
    if not rows:
        raise LeaseLost(lease.job_id)
    number, known, tried, task_id, answer = rows[0]
    return Begun(number, known, bool(tried) and known != key, task_id, answer)  # begun twice under one key: by us


@operation()
def refuse(lease: Lease, round: int) -> Conversation[None]:
    """The provider did not accept, and said so."""
    if not (yield Statement("refuse_submission", id=lease.job_id, token=lease.token, round=round)):
        raise LeaseLost(lease.job_id)


@operation(atomic=True)
def accept(lease: Lease, type: str, round: int, task_id: str, delay: float) -> Conversation[Accepted]:
    """The provider accepted, whoever holds the job by now. Asked after in `delay` seconds; at once, if it answered."""
    ours = {"id": lease.job_id, "round": round}
    told = {"type": type, "task_id": task_id, "digest": digest(task_id), "days": OPEN_DAYS}
    for _ in range(2):  # the second time sees what somebody else has noted at the same moment
        rows = yield Statement("accept_submission", **ours, **told)
        taken_by, noted, answered, second = rows[0]
        if noted or second or taken_by is not None:
            break
    if not noted:
        return Accepted(taken_by, False, bool(second), False)
    moved = yield Statement("process", id=lease.job_id, token=lease.token, delay=0.0 if answered else delay)
    return Accepted(None, True, False, bool(moved))


@operation(reads=True)
def last(job_id: JobId | int) -> Conversation[Submission | None]:
    """The one that counts."""
    rows = yield Statement("submission", id=job_id)
    return _submission(rows[0]) if rows else None


def _submission(row: Row) -> Submission:
    number, key, tried, task_id, answer, age, is_open = row
    return Submission(number, key, bool(tried), task_id, answer, age, bool(is_open))


@operation(atomic=True)
def conclude(settle: Settle, round: int, ending: Ending) -> Conversation[Turn]:
    """It ends, and its job comes to this, in one moment."""
    lease = settle.lease
    yield Statement(
        "conclude_submission",
        id=lease.job_id,
        token=lease.token,
        round=round,
        outcome=ending.outcome,
        usage=ending.usage,
        open=ending.open,
        days=max(settle.days, DEAD_DAYS),
    )
    return (yield from claims.settle([settle]))


@operation()
def forget_answer(lease: Lease, round: int) -> Conversation[None]:
    """A callback that said nothing yet: another may come."""
    yield Statement("forget_answer", id=lease.job_id, token=lease.token, round=round)


@operation()
def end_cancelled(job_id: JobId | int, round: int) -> Conversation[None]:
    """The provider was told that the job is CANCELLED."""
    yield Statement("end_cancelled", id=job_id, round=round)


@operation(atomic=True)
def answer(job_id: JobId | int, round: int, document: bytes) -> Conversation[bool]:
    """A callback; whether it counts. A late or repeated one changes nothing."""
    kept = yield Statement("answer_submission", id=job_id, round=round, answer=document)
    if kept:
        yield Statement("hasten", id=job_id)
    return bool(kept)
