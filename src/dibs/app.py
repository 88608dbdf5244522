"""Dibs: what a user holds. It wires the rest together and holds no rules of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from dibs.config import Settings, database_url
from dibs.engines.callers import arun_on, run_on
from dibs.engines.engine import Engine
from dibs.engines.open import open_engine
from dibs.errors import ConfigError, DuplicateTask, InvalidOption
from dibs.job import Job, JobId, NewJob, checked_name, checked_number
from dibs.operations import jobs
from dibs.operations.operation import Operation
from dibs.retry import Policy
from dibs.task import Declared, Options
from dibs.worker.drain import Drain, DrainReport

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_LIMIT = 1_000_000_000


class Dibs:
    """Background jobs on the database you already have.

    >>> app = Dibs("sqlite:///shop.db")
    >>> @app.task
    ... def greet(name: str) -> str:
    ...     return f"hello {name}"
    >>> job = greet.enqueue(name="Ada")
    >>> print(app.drain().successful, app.get(job.id).result)
    1 hello Ada
    """

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        try:
            self.settings = Settings(**settings)
        except TypeError as error:
            raise ConfigError(f"Unknown setting: {error}") from None
        except InvalidOption as error:
            raise ConfigError(f"The setting {error}") from None
        self.url = database_url(url)
        self.engine: Engine = open_engine(self.url, self.settings)
        self.tasks: dict[str, Declared] = {}

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 5,
        max_attempts: int = 3,
        retry: Policy | float | Sequence[float] | None = None,
        timeout: float | None = None,
        keep: int = 7,
        tags: Sequence[str] = (),
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]  # named in the overloads
        """Declare a function as a task; it stays an ordinary function when called.

        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task(queue="mail", max_attempts=5)
        ... def send(to: str) -> None: ...
        >>> send.name.endswith("send")
        True
        """
        if function is not None:
            return self._declare(function)
        return lambda function: self._declare(function, **options)

    def _declare(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        retry: Policy | float | Sequence[float] | None = None,
        timeout: float | None = None,
        keep: int = 7,
        **options: Any,
    ) -> Task[Any, Any]:
        declared = Declared(
            function,
            name=name,
            options=Options().but(**options),
            retry=retry,
            timeout=timeout,
            keep=keep,
            max_payload=self.settings.max_payload,
        )
        if declared.name in self.tasks:
            raise DuplicateTask(declared.name)
        self.tasks[declared.name] = declared
        return Task(self, declared)

    def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that ran. SQLite does it by itself on first use.

        >>> Dibs("sqlite:///shop.db").migrate()
        ['0001 initial']
        """
        return self.engine.migrate()

    def enqueue_many(self, calls: Iterable[Call], *, connection: Any = None) -> list[JobId]:
        """Add any number of jobs in one transaction, all or nothing; their ids in order.

        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def resize(image: int) -> None: ...
        >>> app.enqueue_many(resize.call(image=n) for n in range(3))
        [1, 2, 3]
        """
        return self._run(jobs.add_many(_new_jobs(calls)), connection)

    async def aenqueue_many(self, calls: Iterable[Call], *, connection: Any = None) -> list[JobId]:
        """The same for async code."""
        return await self._arun(jobs.add_many(_new_jobs(calls)), connection)

    def get(self, job_id: int) -> Job:
        """A fresh snapshot of a job.

        >>> Dibs("sqlite:///shop.db").get(7)
        Traceback (most recent call last):
        ...
        dibs.errors.JobNotFound: There is no job 7. It may be past its retention.
        """
        return self.engine.run(jobs.get(job_id))

    async def aget(self, job_id: int) -> Job:
        """The same for async code."""
        return await self.engine.arun(jobs.get(job_id))

    def cancel(self, job_id: int) -> bool:
        """Cancel a job that is not final. One that runs is told with its worker's next beat, and cannot write any more.

        >>> Dibs("sqlite:///shop.db").cancel(7)
        False
        """
        return self.engine.run(jobs.cancel([job_id])) == 1

    async def acancel(self, job_id: int) -> bool:
        """The same for async code."""
        return await self.engine.arun(jobs.cancel([job_id])) == 1

    def retry(self, job_id: int) -> Job:
        """Let a FAILED or CANCELLED job run again, its attempts counted anew.

        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def greet(name: str) -> str:
        ...     return name
        >>> job = greet.enqueue(name="Ada")
        >>> app.cancel(job.id), app.retry(job.id).state.value
        (True, 'PENDING')
        """
        self.engine.run(jobs.retry(job_id))
        return self.get(job_id)

    async def aretry(self, job_id: int) -> Job:
        """The same for async code."""
        await self.engine.arun(jobs.retry(job_id))
        return await self.aget(job_id)

    def drain(
        self,
        *,
        limit: int | None = None,
        concurrency: int | None = None,
        deadline: float | None = None,
        queues: Sequence[str] | None = None,
    ) -> DrainReport:
        """Run what is due, and end: for serverless functions, cron jobs and tests.

        Ends when nothing is due within a second, after `limit` jobs, or before `deadline` seconds have passed.

        >>> print(Dibs("sqlite:///shop.db").drain().claimed)
        0
        """
        return _blocking(self._drain(limit, concurrency, deadline, queues, close=True))

    async def adrain(
        self,
        *,
        limit: int | None = None,
        concurrency: int | None = None,
        deadline: float | None = None,
        queues: Sequence[str] | None = None,
    ) -> DrainReport:
        """The same for async code."""
        return await self._drain(limit, concurrency, deadline, queues)

    def close(self) -> None:
        """Close the connections of this process; they open again when needed."""
        self.engine.close()

    async def aclose(self) -> None:
        """The same for async code."""
        await self.engine.aclose()

    async def _drain(
        self,
        limit: int | None,
        concurrency: int | None,
        deadline: float | None,
        queues: Sequence[str] | None,
        *,
        close: bool = False,
    ) -> DrainReport:
        drain = Drain(
            self.engine,
            self.tasks,
            lease=self.settings.lease,
            beat=self.settings.beat,
            concurrency=self.settings.concurrency
            if concurrency is None
            else int(checked_number("concurrency", concurrency, 1, 10_000)),
            limit=None if limit is None else int(checked_number("limit", limit, 0, MAX_LIMIT)),
            deadline=None if deadline is None else checked_number("deadline", deadline, 0.001, 86400, whole=False),
            queues=None if queues is None else _checked_queues(queues),
        )
        try:
            return await drain.run()
        finally:
            if close:
                await self.engine.aclose()

    def _add(self, job: NewJob, connection: Any) -> Job:
        if job.unique_key is None:
            return jobs.new_job_snapshot(job, self._run(jobs.add(job), connection))
        (added,) = self._run(jobs.add_keyed([job]), connection)
        if added.created:
            return jobs.new_job_snapshot(job, added)
        return replace(self._run(jobs.get(added.id), connection), created=False)

    async def _aadd(self, job: NewJob, connection: Any) -> Job:
        if job.unique_key is None:
            return jobs.new_job_snapshot(job, await self._arun(jobs.add(job), connection))
        (added,) = await self._arun(jobs.add_keyed([job]), connection)
        if added.created:
            return jobs.new_job_snapshot(job, added)
        return replace(await self._arun(jobs.get(added.id), connection), created=False)

    def _run(self, operation: Operation[T], connection: Any) -> T:
        return self.engine.run(operation) if connection is None else run_on(self.engine, connection, operation)

    async def _arun(self, operation: Operation[T], connection: Any) -> T:
        if connection is None:
            return await self.engine.arun(operation)
        return await arun_on(self.engine, connection, operation)


class Call:
    """A call of a task that is not enqueued yet: for `enqueue_many`."""

    __slots__ = ("job",)

    def __init__(self, job: NewJob) -> None:
        self.job = job


class Task(Generic[P, R]):
    """A declared function: call it, or enqueue it."""

    def __init__(self, app: Dibs, declared: Declared, options: Options | None = None, connection: Any = None) -> None:
        self.app, self.declared, self.connection = app, declared, connection
        self.options = options or declared.options
        update_wrapper(self, declared.function)

    @property
    def name(self) -> str:
        """The `type` of its jobs."""
        return self.declared.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Just call the function."""
        return self.declared.function(*args, **kwargs)  # type: ignore[no-any-return]  # it is the declared one

    def using(self, *, connection: Any = None, **options: Any) -> Task[P, R]:
        """The same task with other options: queue, priority, delay or run_at, max_attempts, unique_key, unique_for,
        tags; and the connection whose transaction the job belongs to.

        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def greet(name: str) -> str: ...
        >>> greet.using(priority=9, delay=60).enqueue(name="Ada").priority
        9
        """
        return Task(self.app, self.declared, self.options.but(**options), connection or self.connection)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A job to be, for `enqueue_many`."""
        if self.connection is not None:
            raise InvalidOption("connection", "say it once for all: app.enqueue_many(calls, connection=...)")
        return Call(self.declared.new_job(self.options, args, kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Add a job; if its unique key is held, the holder with `created=False`."""
        return self.app._add(self.declared.new_job(self.options, args, kwargs), self.connection)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """The same for async code."""
        return await self.app._aadd(self.declared.new_job(self.options, args, kwargs), self.connection)


def _new_jobs(calls: Iterable[Call]) -> Iterator[NewJob]:
    for call in calls:
        if not isinstance(call, Call):
            raise InvalidOption("calls", f"must be made by task.call(...), not {type(call).__name__}")
        yield call.job


def _checked_queues(queues: Sequence[str]) -> list[str]:
    if isinstance(queues, str):
        raise InvalidOption("queues", f"must be a list of names, not the text {queues!r}")
    if not queues:
        raise InvalidOption("queues", "names no queue; leave it out to serve every queue")
    return [checked_name("queues", name) for name in queues]


def _blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise ConfigError(
        "An event loop is running here, so this call would block it. Use the method's async twin: await app.adrain()."
    )
