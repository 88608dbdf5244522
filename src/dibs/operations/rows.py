"""Rows become values here and nowhere else. The comment above each function is the order of its columns, the same in
both engines; JSON comes as text or bytes, a time as a datetime or as microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from dibs.job import LEVELS, STATES, Claimed, Job, JobId, JobState
from dibs.operations.operation import Row, Rows
from dibs.payload import decode

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(value: Any) -> datetime | None:
    """A time as people use it, in UTC."""
    if value is None:
        return None
    if isinstance(value, int):
        return EPOCH + timedelta(microseconds=value)
    return value.astimezone(UTC)  # type: ignore[no-any-return]  # a datetime


# id, type, queue, payload, state, rank, attempts, max_attempts, result, failures, progress, tags, unique_key, worker,
# created_at, run_at, started_at, finished_at, version, submits
def job_from_row(row: Row, receipt: Receipt | None = None) -> Job:
    """A snapshot for people."""
    failures = _all_of(row[9], lambda text: {"error": text})
    state = STATES[row[4]]
    return Job(
        id=JobId(row[0]),
        type=row[1],
        queue=row[2],
        payload=decode(row[3]),
        state=state,
        priority=LEVELS - 1 - row[5] % LEVELS,
        attempts=row[6],
        max_attempts=row[7],
        result=decode(row[8]),
        error=failures[-1]["error"] if failures and state is not JobState.SUCCESSFUL else None,
        failures=failures,
        progress=decode(row[10]),
        tags=_all_of(row[11], str),
        unique_key=row[12],
        worker=row[13],
        created_at=moment(row[14]),
        run_at=moment(row[15]),
        started_at=moment(row[16]),
        finished_at=moment(row[17]),
        version=row[18],
        provider_task_id=receipt.task_id if receipt else None,
        usage=receipt.usage if receipt else None,
    )


def _all_of(document: bytes | str | None, legibly: Callable[[str], T]) -> tuple[T, ...]:
    """The items of a stored list. One that cannot be read has one item, which says so."""
    found = decode(document) or ()
    return tuple(found) if isinstance(found, list | tuple) else (legibly(str(found)),)


class Receipt(NamedTuple):
    """What people see of a job's submissions. `usage`: what it was charged for; of several submissions, a list."""

    job: int
    task_id: str | None
    usage: Any


# job, task_id, usage of each
def receipt_from_row(row: Row) -> Receipt:
    """What the provider calls a job, and what it charged."""
    usages = decode(row[2]) or []
    return Receipt(row[0], row[1], usages if len(usages) > 1 else usages[0] if usages else None)


# id, token, type, queue, payload, attempts, max_attempts, rank, run_at, crashes, finishing
def claimed_from_rows(rows: Rows) -> list[Claimed]:
    """Jobs in our hands."""
    return [tuple.__new__(Claimed, row) for row in rows]  # as Claimed._make does, in half the time


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """What a queue holds. Where `estimate` is set, there are more than could be counted; `as_of` says how old it is.
    `problem`: why the rows of an adopted table could not be counted."""

    name: str
    paused: bool
    waiting: int
    later: int
    retry: int
    running: int
    failed: int
    cancelled: int
    oldest: datetime | None
    estimate: int | None = None
    as_of: datetime | None = None
    processing: int = 0  # their providers work on them
    problem: str | None = None


# name, paused, waiting, later, retry, running, failed, cancelled, oldest, estimate, as_of, processing
def counts_from_row(row: Row) -> QueueCounts:
    """One line of `dibs queues`."""
    name, paused, waiting, later, retry, running, failed, cancelled, oldest, estimate, as_of, processing = row
    numbers = (waiting, later, retry, running, failed, cancelled)
    return QueueCounts(name, bool(paused), *numbers, moment(oldest), estimate, moment(as_of), processing)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as the database knows it."""

    id: int
    name: str
    lease: float
    started_at: datetime | None
    beat_at: datetime | None
    alive: bool


# id, name, lease, started_at, beat_at, alive
def worker_from_row(row: Row) -> WorkerRow:
    """One line of `dibs workers`."""
    return WorkerRow(row[0], row[1], row[2], moment(row[3]), moment(row[4]), bool(row[5]))


class Seen(NamedTuple):
    """A job as it was when somebody looked. Of two looks the one with the higher version is the newer."""

    id: JobId
    version: int
    state: JobState
    attempts: int
    error: str | None
    progress: Any
    queue: str
    type: str


# id, version, state, attempts, error, progress, queue, type
def seen_from_row(row: Row) -> Seen:
    """What those who watch are told."""
    return Seen(JobId(row[0]), row[1], STATES[row[2]], row[3], row[4], decode(row[5]), row[6], row[7])
