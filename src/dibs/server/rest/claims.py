"""Workers in other languages: claim, beat, report, settle. The same leases, the same fence, the same liveness.

A worker is enlisted by its first claim and named in every later one. Each claim has a number; a worker says the last
one that it received, so that jobs of an answer that was lost on the way are handed back, attempt not used. Any beat
of any of its leases, and every claim, shows that it lives.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any

from msgspec import Meta

from dibs.errors import InvalidOption, JobNotFound, LeaseLost
from dibs.job import Claimed, Job, JobState, Lease, WorkerId
from dibs.ladder import START, ranges
from dibs.lifecycle import Back, Change, Done, Errored, Successful, Way, after, failure
from dibs.operations import claims, jobs, watching, workers
from dibs.operations.claims import RETENTION_DAYS, Settle, Want, events_payload
from dibs.payload import decode, encode
from dibs.retry import policy
from dibs.server.problems import Refusal
from dibs.server.rest.route import Asked, Route, Server
from dibs.server.wire import Body, Name, Shown
from dibs.worker.identity import enlist

MOST = 100  # jobs in one claim
LONGEST_WAIT = 30.0
LOOK = 1.0  # seconds between looks of a claim that waits
ELSEWHERE = 5.0  # seconds that a job is left to workers that can finish it
PROGRESS = 16 * 1024  # bytes
ERROR = 10_000  # characters


class ClaimBody(Body):
    """What a worker wants. `unknown`: types that it cannot run. `worker` and `received` are what the last answer said;
    both are missing the first time."""

    queues: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 1
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0.0
    name: Name = "worker"
    unknown: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    worker: Annotated[str, Meta(pattern="^[0-9]{1,13}$")] | None = None
    received: Annotated[int, Meta(ge=0, lt=workers.CLAIMS)] | None = None


class ProgressBody(Body):
    """How far a job is: any JSON."""

    progress: Any


class CompleteBody(Body):
    """A job succeeded."""

    result: Any = None


class FailBody(Body):
    """A job failed; it is retried as its task says, unless `permanent`, or after `delay` seconds."""

    error: Annotated[str, Meta(min_length=1, max_length=ERROR)]
    traceback: Annotated[str, Meta(max_length=10 * ERROR)] | None = None
    permanent: bool = False
    delay: Annotated[float, Meta(ge=0)] | None = None


class LeasedShown(Shown):
    """A job in a worker's hands."""

    lease: str
    job_id: int
    type: str
    queue: str
    payload: Any
    attempts: int
    max_attempts: int


class ClaimedShown(Shown):
    """Jobs, maybe none. Beat for each every `beatSeconds`; after `leaseSeconds` of silence others run them."""

    worker: str
    received: int
    lease_seconds: float
    beat_seconds: float
    jobs: list[LeasedShown]


class SettledShown(Shown):
    """What became of the job."""

    job_id: int
    status: JobState


class AliveShown(Shown):
    """The lease is good."""

    job_id: int


async def claim(asked: Asked) -> ClaimedShown:
    """Take jobs; wait for some if there are none and the worker can."""
    server, body = asked.server, asked.body
    settings, engine = server.app.settings, server.app.engine
    await server.judge.begin()
    until = asyncio.get_running_loop().time() + min(body.wait, 0.6 * settings.lease)
    worker = await _worker(server, body)
    number = await engine.arun(workers.poll(worker, body.received))
    if number is None:
        raise Refusal(409, "worker_gone", "This worker was silent for too long. Claim without `worker` and `received`.")
    with server.hub.listening() as woken:
        while True:
            async with server.room:
                found = await _take(server, worker, number, body)
            left = until - asyncio.get_running_loop().time()
            if found or left <= 0 or await asked.request.is_disconnected():
                break
            woken.clear()
            try:
                async with asyncio.timeout(min(LOOK, left)):
                    await woken.wait()
            except TimeoutError:
                continue
    return ClaimedShown(
        worker=str(worker),
        received=number,
        lease_seconds=settings.lease,
        beat_seconds=settings.beat,
        jobs=[_leased(job) for job in found],
    )


async def _worker(server: Server, body: ClaimBody) -> WorkerId:
    if body.worker is not None:
        return WorkerId(int(body.worker))
    settings = server.app.settings
    name = f"http-{body.name[:100]}-{secrets.token_hex(4)}"
    return await enlist(server.app.engine, name, lease=settings.lease, beat=settings.beat)


async def _take(server: Server, worker: WorkerId, number: int, body: ClaimBody) -> list[Claimed]:
    engine = server.app.engine
    if not await engine.arun(claims.available(body.queues, 1)):
        return []
    queues = tuple(dict.fromkeys(body.queues))
    wanted = [(*key, *START) for key in ranges(queues, last=True, coin=bool(secrets.randbits(1)))]
    turn = await engine.arun_once(
        claims.claim_numbered(Want(worker, number, body.limit, wanted, unknown=[*body.unknown, *_providers(server)]))
    )
    if turn is None:
        raise Refusal(409, "asked_again", "This worker has asked again since, so nobody waits for this answer.")
    await _tell(server, [job.id for job in turn.claimed])
    ours = await _without_providers(server, turn.claimed)
    await _finish(server, [job for job in ours if job.finishing])
    return [job for job in ours if not job.finishing]


async def _without_providers(server: Server, claimed: list[Claimed]) -> list[Claimed]:
    """Jobs of tasks that this server does not know may be for a provider: those wait for a worker of their app."""
    strange = [job.id for job in claimed if job.type not in server.app.tasks]
    if not strange:
        return claimed
    seen = await server.app.engine.arun(watching.look(strange))
    theirs = {each.id for each in seen if each.state in (JobState.SUBMITTING, JobState.PROCESSING)}
    for job in claimed:
        if job.id in theirs:
            await _settle(server, job.lease, job.queue, Back(Way.RELEASE, ELSEWHERE))
    return [job for job in claimed if job.id not in theirs]


def _providers(server: Server) -> list[str]:
    """What only a worker of the app can hand over."""
    return [name for name, task in server.app.tasks.items() if task.submits]


async def _finish(server: Server, spent: list[Claimed]) -> None:
    """Jobs claimed only to be finished: what may have a hook waits for a worker that has it; the others have failed."""
    for job in spent:
        declared = server.app.tasks.get(job.type)
        hook = declared.on_failure is not None if declared else not server.unknown_tasks
        change = Back(Way.RELEASE, ELSEWHERE) if hook else Done(JobState.FAILED)
        await _settle(server, job.lease, job.queue, change)


def _leased(job: Claimed) -> LeasedShown:
    return LeasedShown(
        lease=str(job.lease),
        job_id=job.id,
        type=job.type,
        queue=job.queue,
        payload=decode(job.payload),
        attempts=job.attempts,
        max_attempts=job.max_attempts,
    )


async def heartbeat(asked: Asked) -> AliveShown:
    """The worker lives, and learns whether the job is still its."""
    lease = _lease(asked)
    await asked.server.app.engine.arun(workers.beat_of(lease))
    return AliveShown(job_id=lease.job_id)


async def progress(asked: Asked) -> AliveShown:
    """How far it is; also a beat."""
    lease, engine = _lease(asked), asked.server.app.engine
    await engine.arun(workers.beat_of(lease))
    await engine.arun(jobs.progress(lease, encode(asked.body.progress, PROGRESS, what="progress")))
    return AliveShown(job_id=lease.job_id)


async def complete(asked: Asked) -> SettledShown:
    """It succeeded."""
    result = None if asked.body.result is None else encode(asked.body.result, what="result")
    return await _settled(asked, lambda job: Successful(result))


async def fail(asked: Asked) -> SettledShown:
    """It failed."""
    body: FailBody = asked.body

    def outcome(job: Job) -> Errored:
        more = {} if body.traceback is None else {"traceback": body.traceback}
        entry = encode(failure(job.attempts, body.error, worker=job.worker, **more), what="error")
        return Errored(entry, permanent=body.permanent, delay=body.delay)

    return await _settled(asked, outcome)


async def release(asked: Asked) -> SettledShown:
    """It was not begun, or not ended: it waits again, attempt not used."""
    return await _settled(asked, None)


async def _settled(asked: Asked, outcome: Any) -> SettledShown:
    lease, app = _lease(asked), asked.server.app
    try:
        job = await app.aget(lease.job_id)
    except JobNotFound:
        raise LeaseLost(lease.job_id) from None
    declared = app.tasks.get(job.type)
    if outcome is None:
        change: Change = Back(Way.RELEASE)
    else:
        as_claimed = Claimed(
            lease.job_id, lease.token, job.type, job.queue, None, job.attempts, job.max_attempts, 0, None, 0, 0
        )
        rule, hook = (declared.retry, declared.on_failure is not None) if declared else (policy(None), False)
        change = after(as_claimed, outcome(job), rule, has_hook=hook)
    state = await _settle(asked.server, lease, job.queue, change, declared.keep if declared else RETENTION_DAYS)
    return SettledShown(job_id=lease.job_id, status=state)


async def _settle(server: Server, lease: Lease, queue: str, change: Change, days: int = RETENTION_DAYS) -> JobState:
    turn = await server.app.engine.arun(claims.settle([Settle(lease, change, days)]))
    if (before := turn.before.get(lease.job_id)) is not None:
        if before.final and not (isinstance(change, Done) and change.state is before):
            raise Refusal(409, "already_settled", f"Job {lease.job_id} is {before}: this lease has settled it before.")
        return before  # the same request, sent again
    if turn.lost:
        raise LeaseLost(lease.job_id)
    await _tell(server, [lease.job_id])
    server.judge.tallies.count(queue, change)
    return change.state if isinstance(change, Done) else (await server.app.aget(lease.job_id)).state


async def _tell(server: Server, ids: list[Any]) -> None:
    if server.app.engine.can.notifies:
        for payload in events_payload(ids):
            await server.app.engine.arun(jobs.notify("job_events", payload))


def _lease(asked: Asked) -> Lease:
    try:
        return Lease.parse(asked.request.path_params["lease"])
    except InvalidOption as error:
        raise Refusal(422, "invalid_option", str(error), "lease") from None


ONE = "/api/claims/{lease}"
ROUTES = [
    Route("POST", "/api/claims", "work", claim, "Take jobs, as a worker", ClaimBody, ClaimedShown, waits=True),
    Route("POST", f"{ONE}/heartbeat", "work", heartbeat, "The worker of this job lives", returns=AliveShown),
    Route("POST", f"{ONE}/progress", "work", progress, "How far the job is", ProgressBody, AliveShown),
    Route("POST", f"{ONE}/complete", "work", complete, "The job succeeded", CompleteBody, SettledShown),
    Route("POST", f"{ONE}/fail", "work", fail, "The job failed", FailBody, SettledShown),
    Route("POST", f"{ONE}/release", "work", release, "The job goes back, attempt not used", returns=SettledShown),
]
