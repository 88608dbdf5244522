"""Dibs: what a user holds. It wires the rest together and holds no rules of its own."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, overload

from dibs.calls import Call, Task, new_jobs
from dibs.config import Settings, database_url
from dibs.engines.callers import arun_on, run_on
from dibs.engines.engine import Engine
from dibs.engines.open import open_engine
from dibs.errors import ConfigError, DuplicateTask, InvalidOption
from dibs.job import Job, JobId, NewJob, checked_number, checked_queues
from dibs.operations import jobs
from dibs.operations.operation import Operation
from dibs.retry import Policy
from dibs.task import AlreadyDone as Done
from dibs.task import Declared, Options
from dibs.waiting import Wait
from dibs.worker.drain import Drain, DrainReport
from dibs.worker.embedded import WorkerThread
from dibs.worker.run import Middleware
from dibs.worker.stats import Limits
from dibs.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_LIMIT = 1_000_000_000
DECLARED = {"name", "retry", "retry_on", "timeout", "keep", "on_failure", "reconcile", "aliases"}  # not for single jobs


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
        self._middleware: list[Middleware] = []
        self._thread: WorkerThread | None = None

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
        retry_on: Sequence[type[BaseException]] | None = None,
        timeout: float | None = None,
        keep: int = 7,
        tags: Sequence[str] = (),
        on_failure: Callable[[Job, Any], Any] | None = None,
        reconcile: Callable[P, Done | Awaitable[Done | None] | None] | None = None,
        aliases: Sequence[str] = (),
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

    def _declare(self, function: Callable[..., Any], **options: Any) -> Task[Any, Any]:
        own = {option: options.pop(option) for option in DECLARED & options.keys()}
        declared = Declared(function, options=Options().but(**options), max_payload=self.settings.max_payload, **own)
        for name in (declared.name, *declared.aliases):
            if name in self.tasks:
                raise DuplicateTask(name)
        self.tasks |= dict.fromkeys((declared.name, *declared.aliases), declared)
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
        return self._run(jobs.add_many(new_jobs(calls)), connection)

    async def aenqueue_many(self, calls: Iterable[Call], *, connection: Any = None) -> list[JobId]:
        """The same for async code."""
        return await self._arun(jobs.add_many(new_jobs(calls)), connection)

    def get(self, job_id: int) -> Job:
        """A fresh snapshot of a job.

        >>> Dibs("sqlite:///shop.db").get(7)
        Traceback (most recent call last):
        ...
        dibs.errors.JobNotFound: There is no job 7. It may be past its retention.
        """
        return replace(self.engine.run(jobs.get(job_id)), app=self)

    async def aget(self, job_id: int) -> Job:
        """The same for async code."""
        return replace(await self.engine.arun(jobs.get(job_id)), app=self)

    def join(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until a job is SUCCESSFUL, FAILED or CANCELLED; its last snapshot.

        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def greet(name: str) -> str: ...
        >>> app.join(greet.enqueue(name="Ada").id, timeout=0.01)
        Traceback (most recent call last):
        ...
        dibs.errors.JoinTimeout: Job 1 is still PENDING after 0.01 s. Is a worker running that knows its task?
        """
        wait = Wait(timeout)
        while not (job := self.get(job_id)).state.final:
            time.sleep(wait.pause(job))
        return job

    async def ajoin(self, job_id: int, timeout: float | None = None) -> Job:
        """The same for async code."""
        wait = Wait(timeout)
        while not (job := await self.aget(job_id)).state.final:  # noqa: ASYNC110  # nobody here could set an event
            await asyncio.sleep(wait.pause(job))
        return job

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

    @asynccontextmanager
    async def running(
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | Mapping[str, float] | None = None,
    ) -> AsyncIterator[Worker]:
        """A worker inside your server, for as long as the block lasts: `async with app.running():` in its lifespan.

        When the block ends the worker stops politely: running jobs have the grace time to finish.
        """
        worker = self.worker(concurrency=concurrency, queues=queues)
        work = asyncio.create_task(worker.run(), name="dibs worker")
        begun = asyncio.create_task(worker.begun.wait(), name="dibs worker begins")
        try:
            await asyncio.wait([work, begun], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()  # raises what went wrong
            yield worker
        finally:
            begun.cancel()
            if not worker.stopped.is_set():
                worker.stop()
            await work

    def start(
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | Mapping[str, float] | None = None,
    ) -> None:
        """A worker in a thread of this process, for sync servers such as Flask; returns when it has begun.

        Under gunicorn call it in each child, in the `post_fork` hook. It stops with `stop()`, or when the process ends.

        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def greet(name: str) -> str:
        ...     return f"hello {name}"
        >>> app.start()
        >>> greet.enqueue(name="Ada").join(timeout=30).result
        'hello Ada'
        >>> app.stop()
        """
        if self._thread is not None and self._thread.alive:
            raise ConfigError("A worker of this app is running in this process already. Call app.stop() first.")
        self._thread = WorkerThread(lambda: self.running(concurrency=concurrency, queues=queues), self.aclose)
        self._thread.start()

    def stop(self) -> None:
        """Stop the worker that `start` began, politely; returns when it has ended. Without one it does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.alive:
            thread.stop()

    def worker(
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | Mapping[str, float] | None = None,
        max_jobs: int | None = None,
        max_memory: int | None = None,
    ) -> Worker:
        """A worker that has not begun: what `dibs worker` and `running` run."""
        settings = self.settings
        if concurrency is not None:
            checked_number("concurrency", concurrency, 1, 10_000)
            settings = replace(settings, concurrency=concurrency)
        if isinstance(queues, Mapping):
            for weight in queues.values():
                checked_number("queues", weight, 0.001, 1_000_000, whole=False)
            checked_queues(list(queues))
        elif queues is not None:
            queues = checked_queues(queues)
        return Worker(
            self.engine,
            self.tasks,
            settings,
            queues=queues,
            middleware=self._middleware,
            limits=Limits(max_jobs, max_memory),
        )

    def middleware(self, around: Middleware) -> Middleware:
        """Put a coroutine function around the run of every task: `async def around(job, run): return await run()`.

        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.middleware
        ... async def shout(job, run):
        ...     return str(await run()).upper()
        >>> @app.task
        ... def greet(name: str) -> str:
        ...     return f"hello {name}"
        >>> job = greet.enqueue(name="Ada")
        >>> print(app.drain().successful, job.refresh().result)
        1 HELLO ADA
        """
        if not inspect.iscoroutinefunction(around):
            raise ConfigError("A middleware is a coroutine function: async def around(job, run): return await run()")
        self._middleware.append(around)
        return around

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
            queues=None if queues is None else checked_queues(queues),
            middleware=self._middleware,
        )
        try:
            return await drain.run()
        finally:
            if close:
                await self.engine.aclose()

    def add(self, job: NewJob, connection: Any = None) -> Job:
        """Add a job that was checked already: what `task.enqueue` comes to."""
        if job.unique_key is None:
            return jobs.new_job_snapshot(job, self._run(jobs.add(job), connection), self)
        (added,) = self._run(jobs.add_keyed([job]), connection)
        if added.created:
            return jobs.new_job_snapshot(job, added, self)
        return replace(self._run(jobs.get(added.id), connection), created=False, app=self)

    async def aadd(self, job: NewJob, connection: Any = None) -> Job:
        """The same for async code."""
        if job.unique_key is None:
            return jobs.new_job_snapshot(job, await self._arun(jobs.add(job), connection), self)
        (added,) = await self._arun(jobs.add_keyed([job]), connection)
        if added.created:
            return jobs.new_job_snapshot(job, added, self)
        return replace(await self._arun(jobs.get(added.id), connection), created=False, app=self)

    def _run(self, operation: Operation[T], connection: Any) -> T:
        return self.engine.run(operation) if connection is None else run_on(self.engine, connection, operation)

    async def _arun(self, operation: Operation[T], connection: Any) -> T:
        if connection is None:
            return await self.engine.arun(operation)
        return await arun_on(self.engine, connection, operation)


def _blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise ConfigError(
        "An event loop is running here, so this call would block it. Use the method's async twin: await app.adrain()."
    )
