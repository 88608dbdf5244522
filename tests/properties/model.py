"""The queue as it should be: what every operation does, on plain Python values. No database, no clock of its own.

What chance or the database's clock decides (ids, tokens, the jitter of a recovery, the moment of a step) is told to the
model: ids and tokens as they were given, moments as a span that the true one lies in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dibs.job import JobId, JobState, Lease, NewJob, WorkerId
from dibs.lifecycle import Back, Done, Way
from dibs.operations.claims import Settle, Want
from dibs.operations.jobs import Filter
from dibs.operations.workers import Beat, Recovered
from dibs.payload import decode
from tests.properties.order import Ranges
from tests.properties.values import (
    DAY,
    LONGEST_PAUSE,
    SECOND,
    Key,
    ModelJob,
    ModelWorker,
    Moment,
    Place,
    Span,
    Verdict,
    wrong,
)


class Model:
    """The whole queue."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, ModelJob] = {}
        self.keys: dict[tuple[str, str], Key] = {}
        self.workers: dict[WorkerId, ModelWorker] = {}
        self.paused: set[str] = set()
        self.born = 0

    # Jobs come.

    def add(self, spec: NewJob, job_id: JobId, moment: Moment) -> ModelJob:
        """A new job, whose key is free."""
        wrong(job_id in self.jobs, f"the id {job_id} was given out twice")
        self.born += 1
        run_at = moment.span.plus(0.0 if spec.run_at else spec.delay)
        job = ModelJob(job_id, f"job {self.born}", spec, run_at, int(spec.max_attempts == 1))
        self.jobs[job_id] = job
        if job.key:
            self.keys[job.key] = Key(job_id)
        return job

    def holder(self, spec: NewJob, moment: Moment) -> JobId | None:
        """Who has the key that this job wants."""
        key = self.keys.get((spec.type, spec.unique_key or ""))
        return None if key is None or _lapsed(key, moment) else key.job

    # Jobs are owned.

    def claim(self, want: Want, taken: Sequence[tuple[JobId, int]], moment: Moment, *, ordered: bool = True) -> None:
        """These were claimed, with these tokens: were they the right ones?"""
        wrong(any(job_id not in self.jobs for job_id, _ in taken), "a job was claimed that is not there")
        jobs = [self.jobs[job_id] for job_id, _ in taken]
        wrong(jobs and want.worker not in self.workers, "a worker that is not enlisted claimed something")
        if want.worker in self.workers:
            there = [job for job in self.jobs.values() if job.waiting and job.spec.queue not in self.paused]
            Ranges(want).check(jobs, there, moment, ordered=ordered)
        for job, (_, token) in zip(jobs, taken, strict=True):
            wrong(token in job.tokens, f"{job.name} got a token that it had before")
            job.tokens.append(token)
            job.owner, job.claim, job.token = WorkerId(want.worker), want.number, token
            job.attempts += job.finishing == 0
            job.finishing += job.finishing > 0

    def settle(self, settle: Settle, moment: Moment) -> Verdict:
        """A write-back, if the lease is good."""
        job = self.jobs.get(settle.lease.job_id)
        if job is None or job.token != settle.lease.token:
            return "lost"
        if not job.live or job.owner is None:
            return job.state
        match settle.change:
            case Done():
                self._done(job, settle.change, settle.days, moment)
            case Back():
                self._back(job, settle.change, moment)
        return "settled"

    def _done(self, job: ModelJob, change: Done, days: int, moment: Moment) -> None:
        self._end(job, change.state, moment)
        job.result, job.hook_error, job.days = decode(change.result), change.hook_error, days
        _note_failure(job, change.failure)

    def _end(self, job: ModelJob, state: JobState, moment: Moment) -> None:
        job.place = Place.HISTORY if state is JobState.SUCCESSFUL else Place.DEAD
        job.state, job.finished_at = state, moment.span
        job.owner, job.finishing = None, 0
        if job.key and job.spec.unique_for is None:
            del self.keys[job.key]
        elif job.key and job.spec.unique_for is not None:
            self.keys[job.key].until = moment.span.plus(job.spec.unique_for)

    def _back(self, job: ModelJob, change: Back, moment: Moment) -> None:
        job.free(attempt_used=change.way in (Way.RETRY, Way.FINISH))
        _note_failure(job, change.failure)
        if change.way is Way.RELEASE:
            return
        job.run_at = moment.span.plus(change.delay)
        job.state = JobState.PENDING if change.way is Way.SNOOZE else JobState.RETRY
        job.finishing = max(job.finishing, int(change.way is Way.FINISH))
        job.kind = int(job.finishing > 0 or job.attempts >= job.spec.max_attempts - 1)

    def progress(self, lease: Lease, document: Any) -> bool:
        """How far it is; False when the lease is lost."""
        if not self.owns(lease):
            return False
        self.jobs[lease.job_id].progress = document
        return True

    def owns(self, lease: Lease) -> bool:
        """Is this lease good?"""
        job = self.jobs.get(lease.job_id)
        return job is not None and job.live and job.owner is not None and job.token == lease.token

    def held_by(self, worker: WorkerId) -> list[ModelJob]:
        """What a worker has in its hands, whether it knows or not."""
        return [job for job in self.jobs.values() if job.live and job.owner == worker]

    # Workers come, live and die.

    def enlist(self, worker: WorkerId, name: str, lease: float, beat: float, moment: Moment) -> None:
        """A new worker; a second time does nothing."""
        self.workers.setdefault(worker, ModelWorker(worker, name, lease, beat, moment.span, moment.span))

    def beat(self, worker: WorkerId, held: Iterable[Lease], moment: Moment, *, steady: bool) -> Beat:
        """It lives, and learns what it lost."""
        row = self.workers.get(worker)
        if row:
            gap = not 0 <= moment.after - row.beat_at.low <= 2 * row.beat * SECOND
            row.steady_since = moment.span if gap or not steady else row.steady_since
            row.beat_at = moment.span
        alive = sorted(other.id for other in self.workers.values() if not other.silent(moment.after))
        index = {worker: alive.index(worker)} if row else {}
        lost = frozenset(lease for lease in held if not self.owns(lease))
        return Beat(index, len(alive), lost, silent=len(self.workers) - len(alive))

    def recover(
        self, judge: WorkerId | None, known: Sequence[WorkerId], silent: Sequence[tuple[WorkerId, int]], moment: Moment
    ) -> Recovered:
        """Who is dead, and what they had."""
        careful = judge in self.workers and self.workers[judge].careful(moment.after)
        noted = dict(silent)
        dead = frozenset(
            row.id
            for row in self.workers.values()
            if row.id in known or noted.get(row.id) == row.beat_at.low or (careful and row.silent(moment.after))
        )
        return Recovered({job.id: worker for worker in dead for job in self.held_by(worker)}, dead)

    def bury(self, recovered: Recovered, moment: Moment) -> None:
        """Carry a recovery out."""
        for job_id in recovered.jobs:
            job = self.jobs[job_id]
            pause = min(2**job.finishing, LONGEST_PAUSE) if job.finishing else 0
            self._crash(job, "the worker died", moment.span.plus(pause, pause + 1))
        for worker in recovered.workers:
            wrong(bool(self.held_by(worker)), f"{self.workers[worker].name} was taken away while it had jobs")
            del self.workers[worker]

    def orphans(self, moment: Moment) -> int:
        """Jobs whose worker has no row."""
        orphans = [job for job in self.jobs.values() if job.live and job.owner and job.owner not in self.workers]
        for job in orphans:
            self._crash(job, "the worker vanished", moment.span)
        return len(orphans)

    def _crash(self, job: ModelJob, error: str, run_at: Span) -> None:
        job.fail(job.attempts, error)
        job.free(attempt_used=True)
        job.token, job.state, job.kind, job.run_at = None, JobState.RETRY, 2, run_at
        job.crashes += 1
        if job.finishing == 0 and job.attempts >= job.spec.max_attempts:
            job.finishing = 1

    def hand_back(self, worker: WorkerId, claims: Sequence[int] | None, held: Sequence[Lease]) -> int:
        """What these claims took and the worker does not know of."""
        tokens = {lease.token for lease in held}
        jobs = [
            job for job in self.held_by(worker) if (claims is None or job.claim in claims) and job.token not in tokens
        ]
        for job in jobs:
            job.free(attempt_used=False)
            job.token = None
        return len(jobs)

    def leave(self, worker: WorkerId) -> int:
        """It stops."""
        back = self.hand_back(worker, None, ())
        self.workers.pop(worker, None)
        return back

    # People step in.

    def cancel(self, ids: Iterable[JobId], moment: Moment) -> int:
        """Whatever is not final."""
        jobs = [job for job in map(self.jobs.get, set(ids)) if job is not None and job.live]
        for job in jobs:
            self._end(job, JobState.CANCELLED, moment)
            job.token = None
        return len(jobs)

    def retry(self, ids: Sequence[JobId], moment: Moment) -> dict[JobId, JobId | None]:
        """Back from the dead; for each that was dead the one that holds its key, if that is another."""
        dead = [self.jobs[job_id] for job_id in sorted(ids) if self.jobs[job_id].place is Place.DEAD]
        owners = [job for job in dead if job.key and self.keys.get(job.key, Key(JobId(0))).job == job.id]
        answer: dict[JobId, JobId | None] = {}
        for job in [*owners, *(job for job in dead if job not in owners)]:
            held = self.keys.get(job.key) if job.key else None
            if held and held.job != job.id and not _lapsed(held, moment):
                answer[job.id] = held.job
                continue
            answer[job.id] = None
            self._revive(job, moment)
        return answer

    def _revive(self, job: ModelJob, moment: Moment) -> None:
        if job.key:
            self.keys[job.key] = Key(job.id)
        job.place, job.state, job.run_at = Place.JOBS, JobState.PENDING, moment.span
        job.attempts = job.crashes = job.finishing = 0
        job.kind = int(job.spec.max_attempts == 1)
        job.token = job.progress = job.hook_error = job.finished_at = None

    def matching(self, wanted: Filter) -> list[ModelJob]:
        """The jobs that a filter means, newest first."""
        return [
            job
            for job in sorted(self.jobs.values(), key=lambda job: -job.id)
            if wanted.state in (None, job.shown)
            and wanted.type in (None, job.spec.type)
            and wanted.queue in (None, job.spec.queue)
        ]

    def forget(self, ids: Iterable[JobId]) -> None:
        """Past their retention."""
        for job_id in ids:
            del self.jobs[job_id]

    def lapsed(self, moment: Moment) -> int:
        """Keys past their period go."""
        gone = [key for key, held in self.keys.items() if _lapsed(held, moment)]
        for key in gone:
            del self.keys[key]
        return len(gone)

    def pass_time(self, seconds: int) -> None:
        """All that has happened is so much longer ago, all that is to come so much nearer."""
        for job in self.jobs.values():
            job.run_at = job.run_at.plus(-seconds)
            job.finished_at = job.finished_at and job.finished_at.plus(-seconds)
            job.days -= seconds * SECOND // DAY if job.place is Place.HISTORY else 0
        for worker in self.workers.values():
            worker.beat_at, worker.steady_since = worker.beat_at.plus(-seconds), worker.steady_since.plus(-seconds)
        for key in self.keys.values():
            key.until = key.until and key.until.plus(-seconds)


def _lapsed(key: Key, moment: Moment) -> bool:
    return key.until is not None and key.until.high <= moment.after


def _note_failure(job: ModelJob, failure: bytes | None) -> None:
    if failure is not None:
        entry = decode(failure)
        job.fail(entry["attempt"], entry["error"])
