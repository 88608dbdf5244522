"""Adding jobs, looking them up, cancelling and retrying them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from dibs.errors import Conflict, InvalidOption, JobNotFound, LeaseLost, NotRetryable, UniqueKeyHeld
from dibs.job import BIGGEST, FINAL, Job, JobId, JobState, Lease, NewJob, checked_name, checked_number
from dibs.operations.operation import Conversation, Documents, Operation, Row, Rows, Statement, Table, operation
from dibs.operations.rows import job_from_row, moment, receipt_from_row
from dibs.payload import decode

CHUNK_ROWS, CHUNK_BYTES = 5000, 1_000_000
REACH = 20_000  # rows that one page may read
MAX_PAGE = 500
BULK = 500  # jobs that one statement cancels or retries
KEY_RACES = 20  # a key that is taken and freed faster than we can look is given up on after as many tries

ALIKE = itemgetter(*[n for n, name in enumerate(NewJob._fields) if name != "payload"])
PLAIN = ("queue", "rank", "type", "run_at", "delay", "max_attempts", "payload", "tags", "submits")
KEYED = (*PLAIN, "key", "unique_for")
ENCODED = ("payload", "tags")


@dataclass(frozen=True, slots=True)
class Added:
    """Where a new job went: its id, whether it is new, and its times if so."""

    id: JobId
    created: bool = True
    created_at: datetime | None = None
    run_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs; None means any."""

    state: JobState | None = None
    type: str | None = None
    queue: str | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        for name in ("type", "queue", "tag"):
            if getattr(self, name) is not None:
                checked_name(name, getattr(self, name))

    def values(self) -> dict[str, Any]:
        """As the statements take it."""
        code = None if self.state is None else self.state.code
        return {"state": code, "type": self.type, "queue": self.queue, "tag": self.tag}


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first. A page may come short; go on with `cursor` until it is None."""

    jobs: list[Job]
    cursor: int | None


@operation(repeatable=False, only="add")
def add(job: NewJob) -> Conversation[Added]:
    """Add one job without a unique key."""
    rows = yield Statement("add", payload=job.payload, **common(job))
    job_id, created_at, run_at, *_ = rows[0]
    created = moment(created_at)
    return Added(JobId(job_id), True, created, created if run_at == created_at else moment(run_at))


@operation(repeatable=False)
def add_each(jobs: Sequence[NewJob]) -> Conversation[list[Added]]:
    """Add jobs of any kinds without unique keys, in one statement; where each went, in order."""
    rows = yield Statement("add_each", jobs=Table(PLAIN, [_plain_row(job) for job in jobs], ENCODED), count=len(jobs))
    return [Added(JobId(row[0]), True, moment(row[1]), moment(row[2])) for row in rows]


@operation(atomic=True)
def add_keyed(jobs: Sequence[NewJob]) -> Conversation[list[Added]]:
    """Add jobs that have unique keys; for each whose key is held, the holder. May be repeated safely."""
    found: dict[int, Added] = {}
    missing = list(range(len(jobs)))
    for _ in range(KEY_RACES):
        rows = yield Statement("add_keyed", jobs=Table(KEYED, [_keyed_row(jobs[n]) for n in missing], ENCODED))
        for n, job_id, created, created_at, run_at in rows:
            if job_id is not None:  # else the key was taken or freed while we looked: ask again
                found[missing[n - 1]] = Added(JobId(job_id), bool(created), moment(created_at), moment(run_at))
        missing = [n for n in range(len(jobs)) if n not in found]
        if not missing:
            break
    else:
        raise Conflict("A unique key is taken and freed faster than I can look. Try again.")
    for job in {(job.queue, job.rank): job for job in jobs}.values():
        yield wake(job)
    return [found[n] for n in range(len(jobs))]


class Source:
    """Where new jobs come from; an iterator can be read only once."""

    def __init__(self, jobs: Iterable[NewJob]) -> None:
        self.jobs, self.begun = jobs, False

    def __iter__(self) -> Iterator[NewJob]:
        self.begun = True
        return iter(self.jobs)

    def complete(self) -> bool:
        """It can be read from its beginning."""
        return not self.begun or iter(self.jobs) is not self.jobs


def add_many(jobs: Iterable[NewJob]) -> Operation[list[JobId]]:
    """Add any number of jobs, read in chunks; their ids in order."""
    source = Source(jobs)
    return Operation(
        lambda: _add_many(source), "add_many", repeatable=False, atomic=True, reads=False, restartable=source.complete
    )


def _add_many(jobs: Iterable[NewJob]) -> Conversation[list[JobId]]:
    ids: list[JobId] = []
    ranges: dict[tuple[str, int], NewJob] = {}
    for keyed, chunk in chunks(jobs):
        if keyed:
            ids += [added.id for added in (yield from add_keyed(chunk))]
            continue
        payloads = Documents([job.payload for job in chunk])
        rows = yield Statement("add_many", payloads=payloads, count=len(chunk), **common(chunk[0]))
        ids += [row[0] for row in rows]
        ranges.setdefault((chunk[0].queue, chunk[0].rank), chunk[0])
    for job in ranges.values():
        yield wake(job)
    return ids


def wake(job: NewJob) -> Statement:
    """Whoever waits for such jobs looks."""
    return Statement("wake", queue=job.queue, rank=job.rank, run_at=job.run_at, delay=job.delay)


def common(job: NewJob) -> dict[str, Any]:
    """What is the same in all jobs of a chunk."""
    return {
        "queue": job.queue,
        "rank": job.rank,
        "type": job.type,
        "run_at": job.run_at,
        "delay": job.delay,
        "max_attempts": job.max_attempts,
        "tags": job.tags,
        "submits": job.submits,
    }


def _plain_row(job: NewJob) -> Row:
    return (*[*common(job).values()][:6], job.payload, job.tags, job.submits)


def _keyed_row(job: NewJob) -> Row:
    return (*_plain_row(job), job.unique_key, job.unique_for)


@dataclass(frozen=True, slots=True)
class Once:
    """What a request with a key led to, this time or the first time; and what that first one said."""

    id: JobId
    created: bool
    fingerprint: str


@operation(atomic=True)
def add_once(key: str, fingerprint: str, job: NewJob) -> Conversation[Once]:
    """Add a job, unless a request with the same key has added one: then that one."""
    if not (yield Statement("begin_request", key=key, fingerprint=fingerprint)):
        ((first, job_id),) = yield Statement("request", key=key)
        return Once(JobId(job_id), created=False, fingerprint=first)
    if job.unique_key is None:
        added = yield from add(job)
    else:
        (added,) = yield from add_keyed([job])
    yield Statement("end_request", key=key, id=added.id)
    return Once(added.id, added.created, fingerprint)


def chunks(jobs: Iterable[NewJob]) -> Iterator[tuple[bool, list[NewJob]]]:
    """Neighbours that differ in nothing but their payload go in one statement, up to a size."""
    for kind, group in groupby(jobs, _kind):
        chunk: list[NewJob] = []
        size = 0
        for job in group:
            chunk.append(job)
            size += len(job.payload or b"") + 1
            if len(chunk) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield kind is None, chunk
                chunk, size = [], 0
        if chunk:
            yield kind is None, chunk


def _kind(job: NewJob) -> Row | None:
    return ALIKE(job) if job.unique_key is None else None


@operation(reads=True)
def get(job_id: JobId | int) -> Conversation[Job]:
    """One job, wherever it is."""
    if not 0 < job_id <= BIGGEST:
        raise JobNotFound(job_id)
    rows = yield Statement("get", ids=[job_id])
    if not rows:
        raise JobNotFound(job_id)
    (job,) = yield from _jobs(rows)
    return job


def _jobs(rows: Rows) -> Conversation[list[Job]]:
    """As people see them; of those that were handed to a provider, what it calls them and what it charged."""
    submitted = [row[0] for row in rows if row[19]]
    receipts = [receipt_from_row(row) for row in (yield Statement("receipts", ids=submitted))] if submitted else []
    found = {receipt.job: receipt for receipt in receipts}
    return [job_from_row(row, found.get(row[0])) for row in rows]


@operation(reads=True)
def page(wanted: Filter, *, limit: int = 50, before: int | None = None) -> Conversation[Page]:
    """Jobs that match, newest first; reads at most 20,000 rows of a table and may come short with a cursor."""
    if not 0 < limit <= MAX_PAGE:
        raise InvalidOption("limit", f"must be between 1 and {MAX_PAGE}, not {limit}")
    state = wanted.state
    where = {
        "live": state is None or state not in FINAL,
        "dead": state in (None, JobState.FAILED, JobState.CANCELLED),
        "history": state in (None, JobState.SUCCESSFUL),
        "before": BIGGEST if before is None else _checked_cursor(before),
    }
    rows = yield Statement("page_floor", reach=REACH, **where)
    floor = rows[0][0]
    rows = yield Statement("page", floor=floor, limit=limit, **where, **wanted.values())
    cursor = rows[-1][0] if len(rows) == limit else floor or None
    return Page((yield from _jobs(rows)), cursor)


@operation(reads=True)
def count(wanted: Filter, most: int) -> Conversation[int]:
    """How many match that a person could cancel or retry, counted up to `most`."""
    if wanted.state is JobState.SUCCESSFUL:
        raise InvalidOption("status", "jobs that are SUCCESSFUL are not counted")
    rows = yield Statement("count", most=most, **wanted.values())
    return int(rows[0][0])


def _checked_cursor(cursor: int) -> int:
    return int(checked_number("cursor", cursor, 0, BIGGEST))


# What people do is not repeated after a lost answer: it would find its own work, and say that there was nothing to do.


@operation(repeatable=False)
def cancel(ids: Sequence[JobId | int]) -> Conversation[int]:
    """Cancel jobs that are not final; how many there were."""
    return (yield from cancel_all([job_id for job_id in ids if 0 < job_id <= BIGGEST]))


def cancel_all(ids: Sequence[int]) -> Conversation[int]:
    """Whatever is free at once; then those that others are busy with, when the first of them is free."""
    done = 0
    while ids:
        rows = yield Statement("cancel", ids=ids)
        done += sum(cancelled for _, cancelled in rows)
        ids = [job_id for job_id, cancelled in rows if not cancelled]
        if ids:
            yield Statement("wait_for_row", id=ids[0])
    return done


@operation(repeatable=False)
def retry(job_id: JobId | int) -> Conversation[None]:
    """A person wants a FAILED or CANCELLED job to run again: attempts and crashes start anew."""
    if not 0 < job_id <= BIGGEST:
        raise JobNotFound(job_id)
    rows = yield Statement("retry", ids=[job_id])
    if not rows:
        job = yield from get(job_id)
        raise NotRetryable(job_id, job.state)
    if not rows[0][1]:
        raise UniqueKeyHeld(job_id, rows[0][2])


@dataclass(frozen=True, slots=True)
class Bulk:
    """What one step of a bulk action did; `cursor` is None after the last."""

    done: int
    refused: int
    cursor: int | None


@operation(repeatable=False)
def retry_matching(wanted: Filter, *, after: int = 0) -> Conversation[Bulk]:
    """One step of retrying all that match; those whose unique key is held are left alone and counted."""
    rows = yield Statement("matching_dead", after=_checked_cursor(after), limit=BULK, **wanted.values())
    ids = [row[0] for row in rows]
    answers = (yield Statement("retry", ids=ids)) if ids else []
    done = sum(bool(row[1]) for row in answers)
    return Bulk(done, len(answers) - done, ids[-1] if len(ids) == BULK else None)


@operation(repeatable=False)
def cancel_matching(wanted: Filter, *, after: int = 0) -> Conversation[Bulk]:
    """One step of cancelling all that match."""
    rows = yield Statement("matching_live", after=_checked_cursor(after), limit=BULK, **wanted.values())
    ids = [row[0] for row in rows]
    done = yield from cancel_all(ids)
    return Bulk(done, len(ids) - done, ids[-1] if len(ids) == BULK else None)


@operation()
def progress(lease: Lease, document: bytes) -> Conversation[None]:
    """Write how far a job is; refused when the lease is lost."""
    rows = yield Statement("progress", id=lease.job_id, token=lease.token, progress=document)
    if not rows:
        raise LeaseLost(lease.job_id)


@operation()
def notify(channel: str, payload: str) -> Conversation[None]:
    """Send a hint; lost ones do no harm."""
    yield Statement("notify", channel=channel, payload=payload)


def new_job_snapshot(job: NewJob, added: Added, app: Any = None) -> Job:
    """What `enqueue` returns for a job that is new."""
    return Job(
        app=app,
        id=added.id,
        type=job.type,
        queue=job.queue,
        state=JobState.PENDING,
        payload=decode(job.payload),
        priority=job.priority,
        max_attempts=job.max_attempts,
        tags=tuple(decode(job.tags) or ()),
        unique_key=job.unique_key,
        created_at=added.created_at,
        run_at=added.run_at,
    )
