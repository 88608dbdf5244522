"""The shapes on the wire: what comes in is checked against them, what goes out is made of them; OpenAPI shows them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from dibs.batch import BatchProgress, BatchState
from dibs.job import BIGGEST, MAX_NAME, MAX_TAGS, Job, JobState
from dibs.masking import masked
from dibs.operations.rows import QueueCounts, Seen
from dibs.task import MAX_ATTEMPTS

Id: TypeAlias = Annotated[int, Meta(ge=1, le=BIGGEST)]
NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=NO_CONTROL)]
MANY = 10_000  # jobs in one request


class Body(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What comes in: unknown fields are refused, they are mistakes."""


class Shown(msgspec.Struct, rename="camel", kw_only=True):
    """What goes out."""


S = TypeVar("S", bound=Shown)


def shown(value: Any, shape: type[S]) -> S:
    """What has the same fields, as everyone may see it."""
    return msgspec.convert(value, shape, from_attributes=True)


class NewJobBody(Body):
    """A job to be added. What is left out is as the task says."""

    type: Name
    payload: dict[str, Any] | None = None
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    run_at: Annotated[datetime, Meta(tz=True)] | None = None
    delay: Annotated[float, Meta(ge=0)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    unique_key: Name | None = None
    unique_for: Annotated[float, Meta(ge=0)] | None = None
    tags: Annotated[list[Name], Meta(max_length=MAX_TAGS)] | None = None

    def options(self) -> dict[str, Any]:
        """What was said, as `using` takes it."""
        said = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in said.items() if value is not None}


OPTIONS = ("queue", "priority", "run_at", "delay", "max_attempts", "unique_key", "unique_for", "tags")


class NewJobsBody(Body):
    """Many jobs, added all or none."""

    jobs: Annotated[list[NewJobBody], Meta(min_length=1, max_length=MANY)]


class MatchingBody(Body):
    """All jobs that match; and where to go on, when there were too many for one request."""

    status: JobState | None = None
    type: Name | None = None
    queue: Name | None = None
    tag: Name | None = None
    cursor: Annotated[int, Meta(ge=0, le=BIGGEST)] = 0


class CallbackBody(msgspec.Struct):
    """What a provider says, in its own words. Without a method `callback`: `result` and `usage`, or `error`."""


class CallbackShown(Shown):
    """Whether it counts: the first one does, while the job is not final."""

    accepted: bool


class JobShown(Shown):
    """A job."""

    job_id: int
    type: str
    queue: str
    status: JobState
    version: int
    priority: int
    attempts: int
    max_attempts: int
    payload: Any
    result: Any
    error: str | None
    progress: Any
    tags: list[str]
    unique_key: str | None
    worker: str | None
    created_at: datetime | None
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    created: bool
    provider_task_id: str | None
    usage: Any
    failures: list[dict[str, Any]]


def job_shown(job: Job, mask: Collection[str]) -> JobShown:
    """A job as everyone may see it."""
    return JobShown(
        job_id=job.id,
        type=job.type,
        queue=job.queue,
        status=job.state,
        version=job.version,
        priority=job.priority,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        payload=masked(job.payload, mask),
        result=masked(job.result, mask),
        error=job.error,
        progress=masked(job.progress, mask),
        tags=list(job.tags),
        unique_key=job.unique_key,
        worker=job.worker,
        created_at=job.created_at,
        run_at=job.run_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        created=job.created,
        provider_task_id=job.provider_task_id,
        usage=masked(job.usage, mask),
        failures=list(job.failures),
    )


class JobsShown(Shown):
    """A page of jobs, newest first; `cursor` asks for the next one, and is null after the last."""

    jobs: list[JobShown]
    cursor: int | None


class AddedShown(Shown):
    """The ids of many new jobs, in order."""

    job_ids: list[int]


class CountShown(Shown):
    """How many match; `more`: that is as far as was counted."""

    count: int
    more: bool


class DoneShown(Shown):
    """What an action on all that match has done so far; with a cursor, ask again with it."""

    done: int
    refused: int
    cursor: int | None


class QueueShown(Shown):
    """A queue. With `estimate` there are more than were counted; `asOf` says how old the estimate is."""

    name: str
    paused: bool
    waiting: int
    later: int
    retry: int
    running: int
    failed: int
    cancelled: int
    oldest: datetime | None
    estimate: int | None
    as_of: datetime | None
    processing: int
    problem: str | None  # of an adopted table whose rows cannot be counted
    oldest_seconds: float | None = None  # of waiting


class QueuesShown(Shown):
    """All of them."""

    queues: list[QueueShown]


def queue_shown(counts: QueueCounts, now: datetime) -> QueueShown:
    """A queue as everyone may see it."""
    queue = shown(counts, QueueShown)
    if counts.oldest is not None:
        queue.oldest_seconds = max(0.0, (now - counts.oldest).total_seconds())
    return queue


class WorkerShown(Shown):
    """A worker."""

    name: str
    lease: float
    started_at: datetime | None
    beat_at: datetime | None
    alive: bool


class WorkersShown(Shown):
    """All of them."""

    workers: list[WorkerShown]


class MinuteShown(Shown):
    """What the jobs of one queue came to in one minute."""

    at: datetime | None
    queue: str
    successful: int
    failed: int
    retried: int


class StatsShown(Shown):
    """The minutes in which something happened, the oldest first."""

    minutes: list[MinuteShown]


class CursorBody(Body):
    """Where to go on, when there were too many for one request."""

    cursor: Annotated[int, Meta(ge=0, le=BIGGEST)] = 0


class BatchShown(Shown):
    """A batch. What its unfinished jobs do is told where those are few, and one batch was asked for."""

    batch_id: int
    name: str | None
    status: BatchState
    total: int
    successful: int
    failed: int
    cancelled: int
    unfinished: int
    waiting: int | None
    retry: int | None
    running: int | None
    processing: int | None
    created_at: datetime | None
    closed_at: datetime | None
    finished_at: datetime | None


class BatchesShown(Shown):
    """A page of batches, newest first; `cursor` asks for the next one, and is null after the last."""

    batches: list[BatchShown]
    cursor: int | None


def batch_shown(progress: BatchProgress) -> BatchShown:
    """A batch as everyone may see it."""
    return BatchShown(
        batch_id=progress.id,
        status=progress.state,
        unfinished=progress.unfinished,
        **{each.name: getattr(progress, each.name) for each in fields(progress) if each.name != "id"},
    )


class CountsShown(Shown):
    """A batch's counts, to those who watch it."""

    batch_id: int
    status: BatchState
    total: int
    successful: int
    failed: int
    cancelled: int
    unfinished: int


class EventShown(Shown, omit_defaults=True):
    """A job's state, to those who watch it."""

    job_id: int
    status: JobState
    attempts: int
    error: str | None
    version: int
    progress: Any = None


class RowEventShown(Shown, omit_defaults=True):
    """The state of a row of an adopted table, to those who watch it; without a job, that of the row itself."""

    job_id: int | None
    status: JobState
    attempts: int
    error: str | None
    table: str
    key: Any
    version: int | None = None  # of its job
    progress: Any = None


def event_shown(seen: Seen, mask: Collection[str]) -> EventShown:
    """A state as everyone may see it."""
    return EventShown(
        job_id=seen.id,
        status=seen.state,
        attempts=seen.attempts,
        error=seen.error,
        version=seen.version,
        progress=masked(seen.progress, mask),
    )


def counts_shown(progress: BatchProgress) -> CountsShown:
    """Counts as everyone may see them."""
    return CountsShown(
        batch_id=progress.id,
        status=progress.state,
        total=progress.total,
        successful=progress.successful,
        failed=progress.failed,
        cancelled=progress.cancelled,
        unfinished=progress.unfinished,
    )
