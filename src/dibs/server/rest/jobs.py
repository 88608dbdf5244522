"""Jobs: adding them, looking at them, cancelling and retrying them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec

from dibs.app import Dibs
from dibs.errors import UnknownTask
from dibs.job import BIGGEST, MAX_NAME, Job, JobState, NewJob
from dibs.operations import jobs
from dibs.operations.jobs import BULK, MAX_PAGE, Bulk, Filter
from dibs.operations.operation import Operation
from dibs.payload import encode
from dibs.server.problems import Refusal, whole_number
from dibs.server.rest.route import Asked, Route, Server
from dibs.server.wire import (
    NO_CONTROL,
    AddedShown,
    CountShown,
    DoneShown,
    JobShown,
    JobsShown,
    MatchingBody,
    NewJobBody,
    NewJobsBody,
    job_shown,
)
from dibs.task import Options, new_job
from dibs.worker.commands import Command

STEPS = 20  # of an action on all that match, in one request
COUNTED = 10_000
LONGEST_KEY = 200
AT_ONCE = 50  # jobs of a page that are read together
PAGE_BYTES = 4 * 1024 * 1024  # after so many a page ends, with a cursor


def made(server: Server, body: NewJobBody) -> NewJob:
    """The job that somebody wants, checked like any other."""
    declared = server.app.tasks.get(body.type)
    if declared is None:
        if not server.unknown_tasks:
            raise UnknownTask(body.type, server.app.tasks)
        return new_job(body.type, encode(body.payload or {}), Options().but(**body.options()))
    if isinstance(declared, Command) and not server.commands:
        raise Refusal(403, "commands_not_allowed", "Programs cannot be run over HTTP here.", "type")
    return declared.new_job(declared.options.but(**body.options()), (), body.payload or {})


async def create(asked: Asked) -> Any:
    """Add one; with an Idempotency-Key, once."""
    job = made(asked.server, asked.body)
    key = asked.request.headers.get("idempotency-key")
    if key is not None:
        return await _create_once(asked, job, key)
    return _added(asked, await asked.server.adder.add(job))


def _added(asked: Asked, job: Job) -> tuple[int, JobShown]:
    """One that was there before is somebody else's, perhaps: who may not read is told which it is, and how it is."""
    if not job.created and not asked.access.may("read", job.id):
        job = replace(job, payload=None, result=None, progress=None, error=None, failures=())
    return (201 if job.created else 200), job_shown(job, asked.server.mask)


async def _create_once(asked: Asked, job: NewJob, key: str) -> Any:
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        text = f"Idempotency-Key: must have 1 to {LONGEST_KEY} printable characters"
        raise Refusal(422, "invalid_idempotency_key", text, "Idempotency-Key")
    fingerprint = hashlib.sha256(msgspec.json.encode(asked.body, order="deterministic")).hexdigest()
    app = asked.server.app
    once = await app.engine.arun(jobs.add_once(key, fingerprint, job))
    if once.fingerprint != fingerprint:
        text = "This Idempotency-Key was used for a request with another body."
        raise Refusal(422, "idempotency_key_reused", text, "Idempotency-Key")
    return _added(asked, replace(await app.aget(once.id), created=once.created))


async def create_many(asked: Asked) -> AddedShown:
    """Add many, all or none."""
    if "idempotency-key" in asked.request.headers:
        text = "An Idempotency-Key is for one job. Give each of these a uniqueKey instead."
        raise Refusal(422, "invalid_idempotency_key", text, "Idempotency-Key")
    wanted = [made(asked.server, body) for body in asked.body.jobs]
    ids = await asked.server.app.engine.arun(jobs.add_many(wanted))
    return AddedShown(job_ids=[*ids])


async def read(asked: Asked) -> JobShown:
    """One job."""
    return job_shown(await asked.server.app.aget(asked.job_id), asked.server.mask)


async def page(asked: Asked) -> JobsShown:
    """Some of those that match, newest first."""
    limit, cursor = asked.query("limit"), asked.query("cursor")
    wanted, left = _filter(asked), 50 if limit is None else whole_number(limit, "limit", MAX_PAGE, least=1)
    before = None if cursor is None else whole_number(cursor, "cursor", BIGGEST)
    shown: list[JobShown] = []
    size = 0
    while left > 0 and size < PAGE_BYTES:
        found = await asked.server.app.engine.arun(jobs.page(wanted, limit=min(left, AT_ONCE), before=before))
        part = [job_shown(job, asked.server.mask) for job in found.jobs]
        shown, left, before = shown + part, left - len(part), found.cursor
        size += len(msgspec.json.encode(part))
        if before is None or len(part) < AT_ONCE:
            break
    return JobsShown(jobs=shown, cursor=before)


async def count(asked: Asked) -> CountShown:
    """How many match: to be looked at before acting on all of them."""
    number = await asked.server.app.engine.arun(jobs.count(_filter(asked), COUNTED + 1))
    return CountShown(count=min(number, COUNTED), more=number > COUNTED)


async def cancel(asked: Asked) -> JobShown:
    """Cancel one that is not final; one that is stays as it is."""
    app = asked.server.app
    if not await app.acancel(asked.job_id):
        job = await app.aget(asked.job_id)
        if job.state is not JobState.CANCELLED:
            text = f"Job {job.id} is {job.state} already, and cannot be cancelled."
            raise Refusal(409, "not_cancellable", text)
    return job_shown(await app.aget(asked.job_id), asked.server.mask)


async def retry(asked: Asked) -> JobShown:
    """Let one that has failed or was cancelled run again."""
    return job_shown(await asked.server.app.aretry(asked.job_id), asked.server.mask)


async def cancel_matching(asked: Asked) -> DoneShown:
    """Cancel all that match."""
    return await _all(asked.server.app, asked.body, jobs.cancel_matching)


async def retry_matching(asked: Asked) -> DoneShown:
    """Retry all that match."""
    return await _all(asked.server.app, asked.body, jobs.retry_matching)


async def _all(app: Dibs, body: MatchingBody, step: Any) -> DoneShown:
    """A number of steps; more, and the client asks again with the cursor: no request takes for ever."""
    wanted = Filter(state=body.status, type=body.type, queue=body.queue, tag=body.tag)
    total, cursor = DoneShown(done=0, refused=0, cursor=body.cursor), body.cursor
    for _ in range(STEPS):
        operation: Operation[Bulk] = step(wanted, after=cursor)
        bulk = await app.engine.arun(operation)
        total.done, total.refused, total.cursor = total.done + bulk.done, total.refused + bulk.refused, bulk.cursor
        if bulk.cursor is None:
            break
        cursor = bulk.cursor
    return total


def _filter(asked: Asked) -> Filter:
    status = asked.query("status")
    if status is not None and status not in JobState.__members__:
        raise Refusal(422, "invalid_option", f"status: is one of {', '.join(JobState)}", "status")
    return Filter(
        state=None if status is None else JobState(status),
        type=asked.query("type"),
        queue=asked.query("queue"),
        tag=asked.query("tag"),
    )


NAMED = {"type": "string", "minLength": 1, "maxLength": MAX_NAME, "pattern": NO_CONTROL}
FILTER: dict[str, Any] = {
    "status": {"type": "string", "enum": list(JobState)},
    "type": NAMED,
    "queue": NAMED,
    "tag": NAMED,
}
PAGED = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 50},
    "cursor": {"type": "integer", "minimum": 0, "maximum": BIGGEST},
}
ONCE = {"Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[ -~]+$"}}
MATCHING = f"{STEPS * BULK:,} at most; with a cursor in the answer, ask again with it"

ROUTES = [
    Route("POST", "/api/jobs", "enqueue", create, "Add a job", NewJobBody, JobShown, 201, headers=ONCE, also=(200,)),
    Route("POST", "/api/jobs/bulk", "enqueue", create_many, "Add many jobs, all or none", NewJobsBody, AddedShown, 201),
    Route(
        "GET",
        "/api/jobs",
        "read",
        page,
        "Jobs that match, newest first",
        returns=JobsShown,
        query={**FILTER, **PAGED},
    ),
    Route("GET", "/api/jobs/count", "read", count, "How many jobs match", returns=CountShown, query=FILTER),
    Route(
        "POST",
        "/api/jobs/cancel",
        "operate",
        cancel_matching,
        f"Cancel all that match ({MATCHING})",
        MatchingBody,
        DoneShown,
    ),
    Route(
        "POST",
        "/api/jobs/retry",
        "operate",
        retry_matching,
        f"Retry all that match ({MATCHING})",
        MatchingBody,
        DoneShown,
    ),
    Route("GET", "/api/jobs/{job_id}", "read", read, "One job", returns=JobShown, of_job=True),
    Route("POST", "/api/jobs/{job_id}/cancel", "operate", cancel, "Cancel a job", returns=JobShown),
    Route("POST", "/api/jobs/{job_id}/retry", "operate", retry, "Let a job run again", returns=JobShown),
]
