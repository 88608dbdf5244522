"""Where the jobs of an app are run: drained, in a worker inside a server, or in one of its own.

The worker is loaded by whoever runs jobs: a web process that only adds some starts sooner without it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.config import Settings
from dibs.engines.engine import Engine
from dibs.errors import ConfigError
from dibs.job import checked_number, checked_queues
from dibs.operations import queues as counting
from dibs.operations.rows import QueueCounts
from dibs.task import Declared

if TYPE_CHECKING:
    from dibs.adopted.source import Adopted
    from dibs.operations.adopted import Source
    from dibs.worker.drain import Drain
    from dibs.worker.embedded import WorkerThread
    from dibs.worker.report import DrainReport
    from dibs.worker.run import Middleware
    from dibs.worker.worker import Worker

T = TypeVar("T")

log = logging.getLogger("dibs")

MAX_LIMIT = 1_000_000_000


class Workplace:
    """The half of `Dibs` that runs jobs."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        self.tasks: dict[str, Declared] = {}
        self.adopted: dict[str, Adopted] = {}
        self._middleware: list[Middleware] = []
        self._thread: WorkerThread | None = None

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

        >>> from dibs import Dibs
        >>> print(Dibs("sqlite:///shop.db").drain().claimed)
        0
        """
        drain = self.drainer(limit=limit, concurrency=concurrency, deadline=deadline, queues=queues)
        return _blocking(self._drained(drain))

    async def adrain(
        self,
        *,
        limit: int | None = None,
        concurrency: int | None = None,
        deadline: float | None = None,
        queues: Sequence[str] | None = None,
    ) -> DrainReport:
        """The same for async code."""
        return await self.drainer(limit=limit, concurrency=concurrency, deadline=deadline, queues=queues).run()

    def drainer(
        self,
        *,
        limit: int | None = None,
        concurrency: int | None = None,
        deadline: float | None = None,
        queues: Sequence[str] | None = None,
    ) -> Drain:
        """A drain that has not begun: what `dibs drain` and `drain` run."""
        from dibs.worker.drain import Drain

        return Drain(
            self.engine,
            self.tasks,
            lease=self.settings.lease,
            beat=self.settings.beat,
            grace=self.settings.grace,
            concurrency=self.settings.concurrency
            if concurrency is None
            else int(checked_number("concurrency", concurrency, 1, 10_000)),
            find=partial(self.sources, deadline),
            tells=self.settings.events,
            limit=None if limit is None else int(checked_number("limit", limit, 0, MAX_LIMIT)),
            deadline=None if deadline is None else checked_number("deadline", deadline, 0.001, 86400, whole=False),
            queues=None if queues is None else checked_queues(queues),
            middleware=self._middleware,
            public_url=self.settings.public_url or "",
            app=self,
        )

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
        work.add_done_callback(lambda work: _ended(worker, work))
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

        Under gunicorn call it in each child, in the `post_worker_init` hook. It stops with `stop()`, or when the
        process ends.

        >>> from dibs import Dibs
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def greet(name: str) -> str:
        ...     return f"hello {name}"
        >>> app.start()
        >>> greet.enqueue(name="Ada").join(timeout=30).result
        'hello Ada'
        >>> app.stop()
        """
        from dibs.worker.embedded import WorkerThread

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
        from dibs.worker.stats import Limits
        from dibs.worker.worker import Worker

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
            find=self.sources,
            app=self,
        )

    async def sources(self, within: float | None = None) -> list[Source]:
        """The adopted tables that have a function for their rows, as they are now."""
        return [await each.aready(self.engine, within) for each in self.adopted.values() if each.processor is not None]

    def queues(self) -> list[QueueCounts]:
        """What each queue holds, adopted tables included; `dibs queues list` shows it.

        >>> from dibs import Dibs
        >>> Dibs("sqlite:///shop.db").queues()
        []
        """
        engine = self.engine
        waiting = {name: each.counted(engine, counting.EXACT) for name, each in self.adopted.items()}
        return counting.with_rows(engine.run(counting.counts(engine.schema)), waiting)

    async def aqueues(self) -> list[QueueCounts]:
        """The same for async code."""
        engine = self.engine
        waiting = {name: await each.acounted(engine, counting.EXACT) for name, each in self.adopted.items()}
        return counting.with_rows(await engine.arun(counting.counts(engine.schema)), waiting)

    def middleware(self, around: Middleware) -> Middleware:
        """Put a coroutine function around the run of every task: `async def around(job, run): return await run()`.

        >>> from dibs import Dibs
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

    async def _drained(self, drain: Drain) -> DrainReport:
        try:
            return await drain.run()
        finally:
            await self.aclose()


def _ended(worker: Worker, work: asyncio.Task[Any]) -> None:
    """Whoever waits for the end of the block would hear of it only then. (What kept it from beginning is raised.)"""
    error = None if work.cancelled() else work.exception()
    if error is not None and worker.begun.is_set():
        log.error("The worker in this process has ended, and runs no more jobs: %s", _first(error), exc_info=error)
    worker.ended.set()


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    if _in_loop():
        coroutine.close()
        raise ConfigError(
            "An event loop runs here, so this call would block it. Use the method's async twin: await app.adrain()."
        )
    return asyncio.run(coroutine)


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
