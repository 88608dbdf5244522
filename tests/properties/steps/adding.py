"""Jobs come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from dibs.errors import OutcomeUnknown
from dibs.job import JobId, NewJob
from dibs.operations import jobs
from dibs.payload import encode
from tests.properties.lab import Answer
from tests.properties.look import Look
from tests.properties.model import Model
from tests.properties.steps.step import PRIORITIES, QUEUES, TYPES, Move, Plan, Scene
from tests.properties.values import Moment, wrong


@dataclass(frozen=True)
class New:
    """What a job to be added looks like."""

    queue: str = QUEUES[0]
    type: str = TYPES[0]
    priority: int = PRIORITIES[0]
    max_attempts: int = 3
    delay: int = 0  # seconds; negative: a moment long past
    key: str | None = None
    unique_for: int | None = None

    def __repr__(self) -> str:
        """Only what is special about it."""
        said = [
            f"{part.name}={getattr(self, part.name)!r}"
            for part in fields(self)
            if getattr(self, part.name) != part.default
        ]
        return f"New({', '.join(said)})"

    @property
    def job(self) -> NewJob:
        """As the operations take it."""
        return NewJob(
            self.type,
            encode({}),
            self.queue,
            self.priority,
            self.max_attempts,
            max(self.delay, 0),
            datetime(2001, 1, 1, tzinfo=UTC) if self.delay < 0 else None,
            unique_key=self.key,
            unique_for=self.unique_for if self.key else None,
        )


@dataclass(frozen=True)
class Add(Plan):
    """One job."""

    new: New

    def move(self, scene: Scene) -> Move:
        """With or without a key."""
        spec = self.new.job
        if spec.unique_key is None:
            return Move(f"add {self.new}", jobs.add(spec), self._apply)
        return Move(f"add {self.new}", jobs.add_keyed([spec]), self._apply_keyed)

    def _apply(self, model: Model, answer: Answer, moment: Moment, look: Look) -> str:
        ids = [answer.value.id] if answer.heard else fresh(model, look)
        return added(model, answer, [self.new.job], ids, moment)

    def _apply_keyed(self, model: Model, answer: Answer, moment: Moment, look: Look) -> str:
        wrong(answer.error, f"it raised {answer.error!r}")
        [found] = answer.value
        holder = model.holder(self.new.job, moment)
        if holder is None:
            wrong(found.created != (answer.times == 1), f"created is {found.created}, and it is new")
            return f"{model.add(self.new.job, found.id, moment).name}"
        wrong(found.id != holder or found.created, f"{found} is not the holder of the key")
        return f"{model.jobs[holder].name if holder in model.jobs else holder} has that key"


@dataclass(frozen=True)
class AddMany(Plan):
    """Several jobs in one transaction."""

    news: tuple[New, ...]

    def move(self, scene: Scene) -> Move:
        """All or nothing."""
        return Move(
            f"add {len(self.news)} jobs at once: {self.news}", jobs.add_many([n.job for n in self.news]), self._apply
        )

    def _apply(self, model: Model, answer: Answer, moment: Moment, look: Look) -> str:
        specs = [new.job for new in self.news]
        if not answer.heard:
            wanted = [spec for n, spec in enumerate(specs) if self._is_new(model, specs, n, moment)]
            return added(model, answer, wanted, fresh(model, look), moment)
        wrong(answer.error, f"it raised {answer.error!r}")
        for n, (spec, job_id) in enumerate(zip(specs, answer.value, strict=True)):
            if spec.unique_key is None or model.holder(spec, moment) is None:
                model.add(spec, job_id, moment)
            else:
                wrong(model.holder(spec, moment) != job_id, f"number {n} is not the holder of its key")
        return f"{len(answer.value)} ids"

    def _is_new(self, model: Model, specs: list[NewJob], n: int, moment: Moment) -> bool:
        spec = specs[n]
        earlier = [(other.type, other.unique_key) for other in specs[:n]]
        return spec.unique_key is None or (
            model.holder(spec, moment) is None and (spec.type, spec.unique_key) not in earlier
        )


def fresh(model: Model, look: Look) -> list[JobId]:
    """Jobs that are there although nobody was told, in order."""
    return [JobId(job_id) for job_id in sorted(look.ids - model.jobs.keys())]


def added(model: Model, answer: Answer, specs: list[NewJob], ids: Sequence[JobId], moment: Moment) -> str:
    """Every one of them or, if the operation never came to its commit, none."""
    wrong(answer.error and not isinstance(answer.error, OutcomeUnknown), f"it raised {answer.error!r}")
    if answer.times == 0:
        wrong(ids, f"{len(ids)} jobs are there of an operation that was cut off")
        return "never arrived"
    wrong(len(ids) != len(specs), f"{len(ids)} new jobs are there, and should be {len(specs)}")
    return ", ".join(model.add(spec, job_id, moment).name for spec, job_id in zip(specs, ids, strict=True))
