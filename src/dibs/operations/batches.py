"""Batches: beginning one, adding to it, closing it, and acting on all that it has.

Jobs are counted in parts of a batch; the engines do that wherever a job becomes final, or is taken back from the dead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dibs.batch import BatchId, BatchProgress
from dibs.errors import BatchClosed, BatchNotFound, InvalidOption
from dibs.job import BIGGEST, STATES, JobId, JobState, Lease, NewJob
from dibs.operations.jobs import BULK, MAX_PAGE, Bulk, Source, add_keyed, cancel_all, chunks, common, wake
from dibs.operations.operation import Conversation, Documents, Operation, Row, Statement, operation
from dibs.operations.rows import moment
from dibs.payload import decode

PART = 500  # jobs that are counted together: few enough that turns seldom meet, many enough that counting is cheap
EXACT = 10_000  # unfinished jobs up to which one is told what they do
NOBODY = Lease(JobId(0), 0)


@operation()
def begin(name: str | None, hooks: bytes | None) -> Conversation[BatchId]:
    """A new batch, open. (Begun twice, because the answer was lost, one of the two stays empty.)"""
    rows = yield Statement("add_batch", name=name, hooks=hooks)
    return BatchId(rows[0][0])


def add(batch: int, jobs: Iterable[NewJob], lease: Lease | None = None) -> Operation[list[JobId]]:
    """Add any number of jobs to it, all or nothing; their ids in order. `lease`: of the job that adds them."""
    source = Source(jobs)
    return Operation(
        lambda: _add(batch, source, lease or NOBODY),
        "add_to_batch",
        repeatable=False,
        atomic=True,
        reads=False,
        restartable=source.complete,
    )


def _add(batch: int, jobs: Iterable[NewJob], lease: Lease) -> Conversation[list[JobId]]:
    yield from _opened(batch, lease)
    ids: list[JobId] = []
    ranges: dict[tuple[str, int], NewJob] = {}
    for keyed, chunk in chunks(jobs):
        if keyed:
            ids += yield from _add_keyed(batch, chunk)
            continue
        payloads = Documents([job.payload for job in chunk])
        values = common(chunk[0])
        rows = yield Statement("add_parts", batch=batch, size=PART, payloads=payloads, count=len(chunk), **values)
        ids += [row[0] for row in rows]
        ranges.setdefault((chunk[0].queue, chunk[0].rank), chunk[0])
    for job in ranges.values():
        yield wake(job)
    return ids


def _opened(batch: int, lease: Lease) -> Conversation[None]:
    """It takes jobs, and will until they are there."""
    if not 0 < batch <= BIGGEST:
        raise BatchNotFound(batch)
    rows = yield Statement("open_batch", batch=batch)
    if not rows:
        raise BatchNotFound(batch)
    closed, finished = rows[0]
    if not closed:
        return
    own = yield Statement("own_job", id=lease.job_id, token=lease.token, batch=batch)
    if finished or not own:
        raise BatchClosed(batch, finished=bool(finished))


def _add_keyed(batch: int, jobs: list[NewJob]) -> Conversation[list[JobId]]:
    """Those that there are already are not of this batch."""
    added = yield from add_keyed(jobs)
    new = [each.id for each in added if each.created]
    for at in range(0, len(new), PART):
        yield Statement("make_part", batch=batch, ids=new[at : at + PART])
    return [each.id for each in added]


@operation()
def close(batch: int) -> Conversation[None]:
    """No more jobs from outside; with nothing left it finishes at once. A second time nothing happens."""
    yield Statement("close_batch", batch=batch)


@operation(reads=True)
def progress(batch: int) -> Conversation[BatchProgress]:
    """How far it is, and what its unfinished jobs do."""
    rows = (yield Statement("batch", batch=batch, exact=EXACT)) if 0 < batch <= BIGGEST else []
    if not rows:
        raise BatchNotFound(batch)
    return progress_from_row(rows[0])


@operation(reads=True)
def look(batches: Collection[int]) -> Conversation[list[BatchProgress]]:
    """How far those of them are that there are."""
    rows = yield Statement("batches", ids=list(batches), before=0, unfinished=False, limit=0)
    return [progress_from_row(row) for row in rows]


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Some batches, newest first; go on with `cursor` until it is None."""

    batches: list[BatchProgress]
    cursor: int | None


@operation(reads=True)
def page(*, limit: int = 50, before: int | None = None, unfinished: bool = False) -> Conversation[BatchPage]:
    """Batches, newest first; only those that are not finished, if wanted."""
    if not 0 < limit <= MAX_PAGE:
        raise InvalidOption("limit", f"must be between 1 and {MAX_PAGE}, not {limit}")
    if before is not None and not 0 <= before <= BIGGEST:
        raise InvalidOption("cursor", f"must be between 0 and {BIGGEST}, not {before}")
    start = BIGGEST if before is None else before
    rows = yield Statement("batches", ids=[], before=start, unfinished=unfinished, limit=limit)
    return BatchPage([progress_from_row(row) for row in rows], rows[-1][0] if len(rows) == limit else None)


# id, name, created_at, closed_at, finished_at, total, successful, failed, cancelled, {state: unfinished jobs} or null
def progress_from_row(row: Row) -> BatchProgress:
    """How far a batch is, for people."""
    counts = dict(total=row[5], successful=row[6], failed=row[7], cancelled=row[8])
    return BatchProgress(
        BatchId(row[0]),
        row[1],
        **counts,
        **_doing(decode(row[9])),
        created_at=moment(row[2]),
        closed_at=moment(row[3]),
        finished_at=moment(row[4]),
    )


def _doing(live: dict[str, int] | None) -> dict[str, int]:
    if live is None:
        return {}
    of = {STATES[int(code)]: jobs for code, jobs in live.items()}
    return {
        "waiting": of.get(JobState.PENDING, 0),
        "retry": of.get(JobState.RETRY, 0),
        "running": of.get(JobState.RUNNING, 0) + of.get(JobState.SUBMITTING, 0),
        "processing": of.get(JobState.PROCESSING, 0),
    }


@operation(reads=True)
def usage(batch: int) -> Conversation[dict[str, float]]:
    """What providers charged for its jobs: the sum of each number."""
    rows = yield Statement("batch_usage", batch=batch)
    return dict(rows)


@operation(reads=True)
def of_job(job_id: int) -> Conversation[BatchId | None]:
    """The batch of a job that is not final."""
    rows = yield Statement("batch_of", id=job_id)
    return BatchId(rows[0][0]) if rows else None


@operation(repeatable=False)
def cancel_some(batch: int, *, after: int = 0) -> Conversation[Bulk]:
    """One step of cancelling what is left of it."""
    rows = yield Statement("batch_jobs", batch=batch, after=after, limit=BULK)
    ids = [row[0] for row in rows]
    done = yield from cancel_all(ids)
    return Bulk(done, len(ids) - done, ids[-1] if len(ids) == BULK else None)


@operation(repeatable=False)
def retry_some(batch: int, *, after: int = 0) -> Conversation[Bulk]:
    """One step of letting its FAILED jobs run again; those whose unique key is held are left alone and counted."""
    rows = yield Statement("batch_dead", batch=batch, after=after, state=JobState.FAILED.code, limit=BULK)
    ids = [row[0] for row in rows]
    answers = (yield Statement("retry", ids=ids)) if ids else []
    done = sum(bool(row[1]) for row in answers)
    return Bulk(done, len(answers) - done, ids[-1] if len(ids) == BULK else None)
