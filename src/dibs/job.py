"""What a job is: its states, its snapshot, the lease that proves ownership, and limits of its options.

Pure values. How a state changes is in lifecycle.py; how a job is stored is up to the engines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, NewType

from dibs.errors import InvalidOption

JobId = NewType("JobId", int)
WorkerId = NewType("WorkerId", int)

BIGGEST = 2**63 - 1  # what both engines store as a whole number
LEASE = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")
MAX_NAME = 200
MAX_TAGS = 20
LEVELS = 10
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class JobState(StrEnum):
    """The words people see, on every surface.

    >>> JobState.SUCCESSFUL == "SUCCESSFUL"
    True
    """

    PENDING = "PENDING"
    RETRY = "RETRY"
    PROCESSING = "PROCESSING"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    RUNNING = "RUNNING"
    SUBMITTING = "SUBMITTING"

    @property
    def code(self) -> int:
        """The number that stands for it in the tables."""
        return CODES[self]

    @property
    def final(self) -> bool:
        """Nothing happens to the job any more, unless a person retries it."""
        return self in FINAL


STATES = tuple(JobState)
CODES = {state: code for code, state in enumerate(STATES)}
FINAL = frozenset({JobState.SUCCESSFUL, JobState.FAILED, JobState.CANCELLED})


class Lease(NamedTuple):
    """The proof of ownership: every write-back names it, and a stale one changes nothing.

    >>> str(Lease(JobId(7), 99)), Lease.parse("7.99").token
    ('7.99', 99)
    """

    job_id: JobId
    token: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.token}"

    @classmethod
    def parse(cls, text: str) -> Lease:
        """Read the form that travels on the wire."""
        found = LEASE.fullmatch(text)
        if found is None or any(int(number) > BIGGEST for number in found.groups()):
            raise InvalidOption("lease", f"{text[:50]!r} is not of the form id.token")
        return cls(JobId(int(found[1])), int(found[2]))


class NewJob(NamedTuple):
    """A job to be added, checked; `payload` and `tags` are encoded JSON.

    A named tuple, as everything that is made once for each of many jobs: a frozen dataclass takes ten times as long.
    """

    type: str
    payload: bytes | None = None
    queue: str = "default"
    priority: int = 5
    max_attempts: int = 3
    delay: float = 0.0
    run_at: datetime | None = None
    tags: bytes | None = None
    unique_key: str | None = None
    unique_for: float | None = None
    submits: bool = False  # it is handed to a provider

    @property
    def rank(self) -> int:
        """Where it stands in the claim order: the level, and class 1 when its first attempt is its last."""
        return rank(self.priority, last_attempt=self.max_attempts == 1)


class Claimed(NamedTuple):
    """A job in our hands: what a worker needs to run it and to settle it."""

    id: JobId
    token: int
    type: str
    queue: str
    payload: bytes | str | None
    attempts: int
    max_attempts: int
    rank: int
    run_at: Any
    crashes: int
    finishing: int

    @property
    def lease(self) -> Lease:
        """What a write-back has to name."""
        return tuple.__new__(Lease, self[:2])  # as Lease(self.id, self.token), in half the time

    @property
    def suspect(self) -> bool:
        """Its last attempt left no outcome: run it alone, never hold it unstarted."""
        return self.rank >= 2 * LEVELS


@dataclass(frozen=True, slots=True)
class Job:
    """A snapshot of a job. No property does I/O; `refresh` and `join` give a fresh one.

    >>> job = Job(id=1, type="mail", queue="default", state=JobState.PENDING)
    >>> job.state == "PENDING", job.created
    (True, True)
    """

    id: JobId | int
    type: str
    queue: str
    state: JobState
    payload: Any = None
    priority: int = 5
    attempts: int = 0
    max_attempts: int = 3
    result: Any = None
    error: str | None = None
    progress: Any = None
    tags: tuple[str, ...] = ()
    unique_key: str | None = None
    worker: str | None = None
    created_at: datetime | None = None
    run_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    created: bool = True
    provider_task_id: str | None = None  # of a job that was handed to a provider: what the provider calls it
    usage: Any = None  # and what it was charged for
    version: int = 0  # grows with every change
    failures: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    app: Any = field(default=None, repr=False, compare=False)  # whose job it is; the methods below ask it

    def refresh(self) -> Job:
        """A fresh snapshot.

        >>> from dibs import Dibs
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def greet(name: str) -> str:
        ...     return f"hello {name}"
        >>> job = greet.enqueue(name="Ada")
        >>> print(app.drain())  # doctest: +ELLIPSIS
        claimed 1 of 1 jobs in ... s: 1 successful
        >>> job.state.value, job.refresh().state.value
        ('PENDING', 'SUCCESSFUL')
        """
        return self.app.get(self.id)  # type: ignore[no-any-return]  # a Dibs, which this layer does not know

    async def arefresh(self) -> Job:
        """The same for async code."""
        return await self.app.aget(self.id)  # type: ignore[no-any-return]  # likewise

    def join(self, timeout: float | None = None) -> Job:
        """Wait until it is SUCCESSFUL, FAILED or CANCELLED; the last snapshot. JoinTimeout after so many seconds."""
        return self.app.join(self.id, timeout)  # type: ignore[no-any-return]  # likewise

    async def ajoin(self, timeout: float | None = None) -> Job:
        """The same for async code."""
        return await self.app.ajoin(self.id, timeout)  # type: ignore[no-any-return]  # likewise

    def cancel(self) -> bool:
        """Cancel it, if it is not final."""
        return self.app.cancel(self.id)  # type: ignore[no-any-return]  # likewise

    async def acancel(self) -> bool:
        """The same for async code."""
        return await self.app.acancel(self.id)  # type: ignore[no-any-return]  # likewise

    def retry(self) -> Job:
        """Let it run again, if it is FAILED or CANCELLED."""
        return self.app.retry(self.id)  # type: ignore[no-any-return]  # likewise

    async def aretry(self) -> Job:
        """The same for async code."""
        return await self.app.aretry(self.id)  # type: ignore[no-any-return]  # likewise


def rank(priority: int, *, last_attempt: bool = False) -> int:
    """Level 0 is claimed first; priority 9 is the highest."""
    return LEVELS - 1 - priority + (LEVELS if last_attempt else 0)


def checked_name(option: str, name: str) -> str:
    """A queue, type, key or tag that both engines store alike."""
    if not isinstance(name, str) or not name:
        raise InvalidOption(option, "must be a text that is not empty")
    if len(name) > MAX_NAME:
        raise InvalidOption(option, f"has {len(name)} characters, and {MAX_NAME} are allowed")
    if CONTROL.search(name):
        raise InvalidOption(option, f"{name!r} has control characters or lone surrogates in it")
    return name


def checked_number(option: str, value: float, least: float, most: float, *, whole: bool = True) -> float:
    """A number within its range; booleans and NaN are none."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise InvalidOption(option, f"must be a {'whole ' if whole else ''}number, not {value!r}")
    if not least <= value <= most:
        too_long = isinstance(value, int) and value.bit_length() > 64  # a float may not hold it
        shown = "that" if too_long else f"{value:g}"
        raise InvalidOption(option, f"must be between {least:g} and {most:g}, not {shown}")
    return value


def checked_moment(option: str, moment: datetime) -> datetime:
    """A time with a zone, from 1970 to 9999."""
    if not isinstance(moment, datetime):
        raise InvalidOption(option, f"must be a datetime, not {moment!r}")
    if moment.tzinfo is None:
        raise InvalidOption(option, "has no time zone; use datetime.now(UTC) or give it a tzinfo")
    if not EARLIEST <= moment <= LATEST:
        raise InvalidOption(option, f"{moment.isoformat()} is not between 1970 and 9999")
    return moment


def checked_queues(queues: Sequence[str]) -> list[str]:
    """Names of queues, at least one."""
    if isinstance(queues, str):
        raise InvalidOption("queues", f"must be a list of names, not the text {queues!r}")
    if not queues:
        raise InvalidOption("queues", "names no queue; leave it out to serve every queue")
    return [checked_name("queues", name) for name in queues]
