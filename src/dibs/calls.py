"""What the decorator makes of a function: call it, or enqueue it. Whoever holds the database does the adding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from dibs.errors import InvalidOption
from dibs.job import Job, NewJob
from dibs.task import Declared, Options

P = ParamSpec("P")
R = TypeVar("R")


class Adds(Protocol):
    """Who adds jobs: the app."""

    def add(self, job: NewJob, connection: Any) -> Job:
        """Add one, in the caller's own transaction if there is a connection."""

    async def aadd(self, job: NewJob, connection: Any) -> Job:
        """The same for async code."""


class Call:
    """A call of a task that is not enqueued yet: for `enqueue_many`."""

    __slots__ = ("job",)

    def __init__(self, job: NewJob) -> None:
        self.job = job


class Task(Generic[P, R]):
    """A declared function: call it, or enqueue it."""

    def __init__(self, app: Adds, declared: Declared, options: Options | None = None, connection: Any = None) -> None:
        self.app, self.declared, self.connection = app, declared, connection
        self.options = options or declared.options
        update_wrapper(self, declared.function)

    @property
    def name(self) -> str:
        """The `type` of its jobs."""
        return self.declared.name

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Just call the function."""
        return self.declared.function(*args, **kwargs)  # type: ignore[no-any-return]  # it is the declared one

    def using(self, *, connection: Any = None, **options: Any) -> Task[P, R]:
        """The same task with other options: queue, priority, delay or run_at, max_attempts, unique_key, unique_for,
        tags; and the connection whose transaction the job belongs to.

        >>> from dibs import Dibs
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def greet(name: str) -> str: ...
        >>> greet.using(priority=9, delay=60).enqueue(name="Ada").priority
        9
        """
        return Task(self.app, self.declared, self.options.but(**options), connection or self.connection)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A job to be, for `enqueue_many`."""
        if self.connection is not None:
            raise InvalidOption("connection", "say it once for all: app.enqueue_many(calls, connection=...)")
        return Call(self.declared.new_job(self.options, args, kwargs))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job; if its unique key is held, the holder with `created=False`."""
        return self.app.add(self.declared.new_job(self.options, args, kwargs), self.connection)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """The same for async code."""
        return await self.app.aadd(self.declared.new_job(self.options, args, kwargs), self.connection)


def new_jobs(calls: Iterable[Call]) -> Iterator[NewJob]:
    """The jobs of calls, one after another."""
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidOption("calls", f"must be made by task.call(...), not {type(call).__name__}")
        yield call.job
