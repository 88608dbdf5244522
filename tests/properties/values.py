"""What the model is made of: jobs, workers and keys as they should be, and moments that are known only roughly."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias

from dibs.job import LEVELS, JobId, JobState, NewJob, WorkerId

SECOND = 1_000_000
DAY = 86_400 * SECOND
FAILURES = 10  # that stay with a job
LONGEST_PAUSE = 300  # seconds before a job is finished again whose finisher died

Verdict: TypeAlias = Literal["settled", "lost"] | JobState
"""What a write-back came to; a state means that the same lease had settled it before, to that state."""


class Disagreement(AssertionError):
    """The database does not do what the model says."""


class Span(NamedTuple):
    """A moment that is known only to lie between two, in microseconds by the database's clock."""

    low: int
    high: int

    def plus(self, low: float, high: float | None = None) -> Span:
        """So many seconds later, or between so many and so many."""
        return Span(self.low + round(low * SECOND), self.high + round((low if high is None else high) * SECOND))


@dataclass(frozen=True, slots=True)
class Moment:
    """When a step happened, and whether another ran beside it. `still`: the jobs that two turns at once left alone."""

    before: int
    after: int
    racing: bool = False
    still: frozenset[int] = frozenset()

    @property
    def span(self) -> Span:
        """As a span."""
        return Span(self.before, self.after)


class Place(StrEnum):
    """The table that a job is in: always one of these, never two."""

    JOBS = "jobs"
    DEAD = "dead"
    HISTORY = "history"


@dataclass(eq=False)
class ModelJob:
    """One job. `token`: the one that its row is still known by; settling keeps it, all else that frees it does not."""

    id: JobId
    name: str
    spec: NewJob
    run_at: Span
    kind: int  # 0 plain, 1 on its last attempt, 2 suspect
    place: Place = Place.JOBS
    state: JobState = JobState.PENDING
    attempts: int = 0
    crashes: int = 0
    finishing: int = 0
    owner: WorkerId | None = None
    claim: int = 0
    token: int | None = None
    tokens: list[int] = field(default_factory=list)  # all that were ever handed out
    failures: list[tuple[int, str]] = field(default_factory=list)
    progress: Any = None
    result: Any = None
    hook_error: str | None = None
    finished_at: Span | None = None
    days: int = 0  # of its retention that are left

    @property
    def level(self) -> int:
        """0 is claimed first."""
        return LEVELS - 1 - self.spec.priority

    @property
    def rank(self) -> int:
        """As the tables have it."""
        return self.level + LEVELS * self.kind

    @property
    def suspect(self) -> bool:
        """Its last attempt left no outcome."""
        return self.kind == 2

    @property
    def live(self) -> bool:
        """Not final."""
        return self.place is Place.JOBS

    @property
    def waiting(self) -> bool:
        """Live, and in nobody's hands."""
        return self.live and self.owner is None

    @property
    def shown(self) -> JobState:
        """The word that people see."""
        return self.state if self.owner is None or not self.live else JobState.RUNNING

    @property
    def key(self) -> tuple[str, str] | None:
        """Its unique key, if it has one."""
        return None if self.spec.unique_key is None else (self.spec.type, self.spec.unique_key)

    def fail(self, attempt: int, error: str) -> None:
        """The last ten stay."""
        self.failures = [*self.failures, (attempt, error)][-FAILURES:]

    def free(self, *, attempt_used: bool) -> None:
        """Out of its owner's hands."""
        self.owner, self.claim = None, 0
        if not attempt_used:
            self.attempts -= self.finishing == 0
            self.finishing -= self.finishing > 0


@dataclass
class ModelWorker:
    """One row of the workers."""

    id: WorkerId
    name: str
    lease: float
    beat: float
    beat_at: Span
    steady_since: Span

    def silent(self, now: int, leases: float = 1.0) -> bool:
        """A beat a whole lease in the future is as dead as an old one."""
        return abs(now - self.beat_at.high) > leases * self.lease * SECOND

    def careful(self, now: int) -> bool:
        """Its beats went through without a gap for a whole lease, up to now."""
        steady = self.beat_at.high - self.steady_since.low >= self.lease * SECOND
        return steady and abs(now - self.beat_at.high) <= 2 * self.beat * SECOND


@dataclass
class Key:
    """Who holds a unique key, and until when if that job is final."""

    job: JobId
    until: Span | None = None


def wrong(so: Any, problem: str) -> None:
    """Say what is wrong, if it is so."""
    if so:
        raise Disagreement(problem)
