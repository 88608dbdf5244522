"""What steps are made of: whom they act on, and what a plan becomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dibs.errors import OutcomeUnknown
from dibs.job import Claimed, JobId, Lease, WorkerId
from dibs.ladder import Ladders
from dibs.operations.claims import Settle
from dibs.operations.operation import Operation
from tests.properties.lab import Answer, Fate, Lab
from tests.properties.look import Look
from tests.properties.model import Model
from tests.properties.values import ModelJob, Moment, Place, wrong

T = TypeVar("T")

QUEUES = ("fast", "slow")
TYPES = ("plain", "hooked")  # jobs of the second have a hook for their final failure
PRIORITIES = (5, 9, 0)


@dataclass
class Hand:
    """A worker's own view: what it believes to hold, what it has not heard back about."""

    id: WorkerId
    name: str
    turns: int = 0
    held: dict[Lease, Claimed] = field(default_factory=dict)
    unsent: list[Settle] = field(default_factory=list)  # settled in a turn whose answer never came
    doubts: list[int] = field(default_factory=list)  # claims whose answer never came
    ladders: Ladders = field(default_factory=Ladders)


@dataclass
class Scene:
    """What the plans of one walk act on."""

    model: Model
    crew: list[Hand] = field(default_factory=list)
    papers: dict[Lease, Claimed] = field(default_factory=dict)  # every lease that anyone was ever told
    noted: list[tuple[WorkerId, Any]] = field(default_factory=list)  # who was silent at the last look for that
    enlisted: int = 0
    now: int = 0  # by the database's clock, when it was last looked at

    def hand(self, number: int, chosen: Callable[[Hand], bool] = lambda hand: True) -> Hand | None:
        """One of the workers that live, if there is such a one."""
        found = [hand for hand in self.crew if chosen(hand)]
        return found[number % len(found)] if found else None

    def row(self, number: int) -> WorkerId | None:
        """One of the workers that are enlisted, alive or not."""
        rows = sorted(self.model.workers.values(), key=lambda worker: worker.name)
        return rows[number % len(rows)].id if rows else None

    def job(self, number: int) -> ModelJob | None:
        """One of the jobs, wherever it is."""
        found = list(self.model.jobs.values())
        return found[number % len(found)] if found else None

    def dead(self, number: int) -> ModelJob | None:
        """One of the jobs that a person could retry; if there is none, or at times, any."""
        found = [job for job in self.model.jobs.values() if job.place is Place.DEAD]
        return found[number % len(found)] if found and number % 4 else self.job(number)

    def lease(self, number: int) -> Lease | None:
        """One of the leases ever given, the latest first."""
        found = list(self.papers)
        return found[-1 - number % len(found)] if found else None

    def leaves(self, hand: Hand) -> None:
        """Nobody acts for this worker any more; what it knew may still be used by a zombie."""
        self.crew.remove(hand)

    def call(self, lease: Lease) -> str:
        """Job 3's second lease is 3.2."""
        job = self.model.jobs.get(lease.job_id)
        if job is None:
            return "one of a forgotten job"
        return f"{job.name[4:]}.{job.tokens.index(lease.token) + 1}"


@dataclass(frozen=True)
class Move:
    """A plan made concrete. `apply` tells the model and returns what came of it; `learn` is for its caller."""

    title: str
    operation: Operation[Any]
    apply: Callable[[Model, Answer, Moment, Look], str]
    learn: Callable[[Answer], None] = lambda answer: None
    once: bool = False


class Stage(Protocol):
    """Where steps are made, and checked."""

    lab: Lab
    scene: Scene
    seen: Look  # at the last look

    def do(self, plan: Plan, fate: Fate = Fate.ANSWERED) -> None:
        """Carry out one plan, if there is anybody to do so, and compare."""

    def race(self, left: Plan, right: Plan, fate: Fate, *, linger: bool) -> None:
        """Carry out two at once, and compare; the answers to turns may be lost."""

    def tell(self, line: str) -> None:
        """Something happened."""

    def look(self) -> Moment:
        """See how things are; the time since the last look."""


class Step(ABC):
    """Something that can happen in a walk."""

    @abstractmethod
    def make(self, stage: Stage, fate: Fate) -> None:
        """Let it happen."""


class Plan(Step):
    """A step that is one operation."""

    @abstractmethod
    def move(self, scene: Scene) -> Move | None:
        """As it is now; None when there is nobody to do it or nothing to do it to."""

    def make(self, stage: Stage, fate: Fate) -> None:
        """Do it, and compare."""
        stage.do(self, fate)


def same(answer: Answer, expected: Any) -> None:
    """The answer is this, and no error."""
    wrong(answer.error is not None, f"it raised {answer.error!r}")
    wrong(answer.value != expected, f"the answer is {answer.value!r}, and should be {expected!r}")


def repeat(answer: Answer, act: Callable[[], T]) -> T:
    """As often as the operation was carried out; what the last time came to is what the caller heard."""
    for _ in range(answer.times - 1):
        act()
    return act()


def unheard(answer: Answer, act: Callable[[], object]) -> str | None:
    """Of what is never repeated, when no answer came: it was done once or not at all, and the caller knows that."""
    if answer.heard:
        return None
    wrong(not isinstance(answer.error, OutcomeUnknown), f"it raised {answer.error!r}, and nobody can know")
    if answer.times:
        act()
    return "nobody knows"


def names(model: Model, ids: Iterable[int]) -> str:
    """Jobs, for people."""
    jobs = [model.jobs.get(JobId(job_id)) for job_id in sorted(ids)]
    return ", ".join(job.name if job else "a job unknown" for job in jobs) or "nothing"
