"""People cancel, retry and pause; pruners forget."""

from __future__ import annotations

from dataclasses import dataclass

from dibs.errors import DibsError, JobNotFound, NotRetryable, UniqueKeyHeld
from dibs.job import JobId
from dibs.operations import jobs, queues, retention
from dibs.operations.jobs import Filter
from tests.properties.lab import Answer
from tests.properties.look import Look
from tests.properties.model import Model
from tests.properties.steps.step import Move, Plan, Scene, repeat, same, unheard
from tests.properties.values import DAY, Moment, Place, wrong

DEAD_DAYS = 5


@dataclass(frozen=True)
class Cancel(Plan):
    """A person cancels a job, or all that match."""

    job: int
    filter: Filter | None = None

    def move(self, scene: Scene) -> Move | None:
        """Waiting or running; what is final stays."""
        if self.filter is not None:
            return Move(f"cancel all {self.filter}", jobs.cancel_matching(self.filter), self._apply_matching)
        job = scene.job(self.job)
        if job is None:
            return None

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            if said := unheard(answer, lambda: model.cancel([job.id], moment)):
                return said
            done = model.cancel([job.id], moment)
            same(answer, done)
            return f"{done} cancelled"

        return Move(f"cancel {job.name}", jobs.cancel([job.id]), apply)

    def _apply_matching(self, model: Model, answer: Answer, moment: Moment, look: Look) -> str:
        wanted = self.filter or Filter()
        if said := unheard(answer, lambda: model.cancel([job.id for job in model.matching(wanted)], moment)):
            return said
        done = model.cancel([job.id for job in model.matching(wanted)], moment)
        same(answer, jobs.Bulk(done, 0, None))
        return f"{done} cancelled"


@dataclass(frozen=True)
class Retry(Plan):
    """A person retries a job, or all that match."""

    job: int
    filter: Filter | None = None

    def move(self, scene: Scene) -> Move | None:
        """FAILED or CANCELLED, if its key can be had."""
        if self.filter is not None:
            return Move(f"retry all {self.filter}", jobs.retry_matching(self.filter), self._apply_matching)
        job = scene.dead(self.job)
        if job is None:
            return None

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            if said := unheard(answer, lambda: _refusal(model, job.id, moment)):
                return said
            expected = _refusal(model, job.id, moment)
            told = repr(answer.error) if not moment.racing else type(answer.error)
            should = repr(expected) if not moment.racing else type(expected)
            wrong(told != should, f"it raised {answer.error!r}, and should raise {expected!r}")
            return type(expected).__name__ if expected else "it waits again"

        return Move(f"retry {job.name}", jobs.retry(job.id), apply)

    def _apply_matching(self, model: Model, answer: Answer, moment: Moment, look: Look) -> str:
        wanted = self.filter or Filter()
        if said := unheard(answer, lambda: model.retry([job.id for job in model.matching(wanted)], moment)):
            return said
        found = model.retry([job.id for job in model.matching(wanted)], moment)
        refused = sum(holder is not None for holder in found.values())
        same(answer, jobs.Bulk(len(found) - refused, refused, None))
        return f"{len(found) - refused} wait again, {refused} refused"


def _refusal(model: Model, job_id: JobId, moment: Moment) -> DibsError | None:
    """Retry it in the model; the error that this raises."""
    if job_id not in model.jobs:
        return JobNotFound(job_id)
    if model.jobs[job_id].place is not Place.DEAD:
        return NotRetryable(job_id, model.jobs[job_id].shown)
    holder = model.retry([job_id], moment)[job_id]
    return None if holder is None else UniqueKeyHeld(job_id, holder)


@dataclass(frozen=True)
class Pause(Plan):
    """A person pauses a queue, or resumes it."""

    queue: str
    paused: bool

    def move(self, scene: Scene) -> Move:
        """What runs goes on."""

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            same(answer, None)
            (model.paused.add if self.paused else model.paused.discard)(self.queue)
            return "so be it"

        operation = queues.pause(self.queue) if self.paused else queues.resume(self.queue)
        return Move(f"{'pause' if self.paused else 'resume'} {self.queue}", operation, apply)


@dataclass(frozen=True)
class LapsedKeys(Plan):
    """Unique keys past their period are dropped."""

    def move(self, scene: Scene) -> Move:
        """Only those."""

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            gone = repeat(answer, lambda: model.lapsed(moment))
            same(answer, gone)
            return f"{gone} keys"

        return Move("drop lapsed keys", retention.lapsed(), apply)


@dataclass(frozen=True)
class Expired(Plan):
    """Which jobs are past their retention?"""

    place: Place

    def move(self, scene: Scene) -> Move:
        """Only a look."""

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            wrong(answer.error, f"it raised {answer.error!r}")
            same(Answer(sorted(answer.value)), sorted(self.expired(model, moment)))
            return f"{len(answer.value)} jobs"

        dead = self.place is Place.DEAD
        return Move(
            f"what has expired in {self.place}?",
            retention.expired_dead(DEAD_DAYS) if dead else retention.expired_history(),
            apply,
        )

    def expired(self, model: Model, moment: Moment) -> list[JobId]:
        """By the model."""
        there = [job for job in model.jobs.values() if job.place is self.place]
        if self.place is Place.HISTORY:
            return [job.id for job in there if job.days < 0]
        return [job.id for job in there if job.finished_at and moment.after - job.finished_at.high > DEAD_DAYS * DAY]


@dataclass(frozen=True)
class Forget(Plan):
    """Jobs past their retention are deleted."""

    place: Place

    def move(self, scene: Scene) -> Move | None:
        """As a pruner does: those that were found expired."""
        ids = Expired(self.place).expired(scene.model, Moment(scene.now, scene.now))
        if not ids:
            return None

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            wrong(answer.error, f"it raised {answer.error!r}")
            wrong(answer.times == 1 and answer.value != len(ids), f"{answer.value} went, and should {len(ids)}")
            model.forget(ids)
            return f"{len(ids)} jobs"

        forget = retention.forget_dead if self.place is Place.DEAD else retention.forget_history
        return Move(f"forget what has expired in {self.place}", forget(ids), apply)
