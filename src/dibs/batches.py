"""What a user holds of a batch: add jobs to it, watch it, wait for it, cancel it. The database does the counting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from dibs.batch import BatchId, BatchProgress, BatchState, hooks
from dibs.calls import Call, Task, new_jobs
from dibs.context import lease_here
from dibs.engines.callers import arun_on, run_on
from dibs.engines.engine import Engine
from dibs.errors import ConfigError
from dibs.job import JobId, checked_name
from dibs.operations import batches
from dibs.operations.jobs import Bulk
from dibs.operations.operation import Operation
from dibs.waiting import Wait

T = TypeVar("T")


class Batch:
    """Jobs that are counted together, and jobs that follow when the last of them is final.

    It takes jobs while the block lasts, in one transaction for each `add`, and afterwards from its own jobs alone.

    >>> from dibs import Dibs
    >>> app = Dibs("sqlite:///shop.db")
    >>> @app.task
    ... def resize(image: int) -> None: ...
    >>> @app.task
    ... def report(batch_id: int) -> str:
    ...     return f"{app.get_batch(batch_id).progress().successful} images"
    >>> with app.batch(name="images", on_complete=report) as batch:
    ...     ids = batch.add(resize.call(image=n) for n in range(3))
    >>> print(app.drain().successful, batch.progress().state, app.get(ids[-1] + 1).result)
    4 FINISHED 3 images
    """

    def __init__(
        self,
        engine: Engine,
        batch_id: BatchId | None = None,
        *,
        name: str | None = None,
        hooks: bytes | None = None,
        connection: Any = None,
    ) -> None:
        self.engine, self.name, self.hooks, self.connection = engine, name, hooks, connection
        self._id = batch_id

    def __repr__(self) -> str:
        return f"Batch({self._id if self.name is None else f'{self._id}, {self.name!r}'})"

    @property
    def id(self) -> BatchId:
        """Its number: the same on every surface."""
        if self._id is None:
            raise ConfigError("This batch has not begun. Write `with app.batch(...) as batch:`, or call its begin().")
        return self._id

    def begin(self) -> Batch:
        """What `with` does first. Without `with`, it is yours to close.

        >>> from dibs import Dibs
        >>> batch = Dibs("sqlite:///shop.db").batch().begin()
        >>> print(batch.progress().state)
        OPEN
        >>> batch.close()
        >>> print(batch.progress().state)
        FINISHED
        """
        if self._id is None:
            self._id = self._run(batches.begin(self.name, self.hooks), self.connection)
        return self

    async def abegin(self) -> Batch:
        """The same for async code."""
        if self._id is None:
            self._id = await self._arun(batches.begin(self.name, self.hooks), self.connection)
        return self

    def __enter__(self) -> Batch:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._left_open(error)
        self.connection = None  # the caller's transaction may be over before this handle is

    async def __aenter__(self) -> Batch:
        return await self.abegin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            self._left_open(error)
        self.connection = None

    def _left_open(self, error: BaseException) -> None:
        """As if the process had died here: what was committed stays, and a person decides."""
        if self.connection is None:
            error.add_note(f"Batch {self._id} stays open, with what was added to it: close it, or cancel it.")

    def add(self, calls: Iterable[Call], *, connection: Any = None) -> list[JobId]:
        """Add any number of jobs, read in chunks, all or nothing; their ids in order.

        A job whose unique key is held is not of this batch. After the block only the batch's own jobs may add.

        >>> from dibs import Dibs
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def resize(image: int) -> None: ...
        >>> with app.batch() as batch:
        ...     batch.add([resize.call(image=1), resize.using(queue="large").call(image=2)])
        [1, 2]
        """
        return self._run(batches.add(self.id, new_jobs(calls), lease_here()), connection or self.connection)

    async def aadd(self, calls: Iterable[Call], *, connection: Any = None) -> list[JobId]:
        """The same for async code."""
        return await self._arun(batches.add(self.id, new_jobs(calls), lease_here()), connection or self.connection)

    def close(self) -> None:
        """No more jobs from outside; with nothing left it finishes at once. A second time nothing happens."""
        self._run(batches.close(self.id), self.connection)

    async def aclose(self) -> None:
        """The same for async code."""
        await self._arun(batches.close(self.id), self.connection)

    def progress(self) -> BatchProgress:
        """How far it is: exact counts.

        >>> from dibs import Dibs
        >>> app = Dibs("sqlite:///shop.db")
        >>> with app.batch(name="nothing") as batch:
        ...     pass
        >>> progress = batch.progress()
        >>> progress.name, progress.total, progress.unfinished
        ('nothing', 0, 0)
        """
        return self._run(batches.progress(self.id), self.connection)

    async def aprogress(self) -> BatchProgress:
        """The same for async code."""
        return await self._arun(batches.progress(self.id), self.connection)

    def usage(self) -> dict[str, float]:
        """What providers charged for its jobs so far: the sum of each number in their `usage`.

        >>> from dibs import Dibs, Done
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.provider_task(poll_every=0.01, after_crash="resubmit")
        ... class Summarise:
        ...     def submit(self, text: str, key: str) -> str:
        ...         return key
        ...     def poll(self, task_id: str) -> Done:
        ...         return Done(usage={"tokens": 12, "model": "small"})
        >>> with app.batch() as batch:
        ...     ids = batch.add(Summarise.call(text=text) for text in ("one", "two"))
        >>> print(app.drain().successful, batch.usage())
        2 {'tokens': 24.0}
        """
        return self.engine.run(batches.usage(self.id))

    async def ausage(self) -> dict[str, float]:
        """The same for async code."""
        return await self.engine.arun(batches.usage(self.id))

    def join(self, timeout: float | None = None) -> BatchProgress:
        """Wait until it is finished; how it was then. JoinTimeout after so many seconds."""
        wait = Wait(timeout)
        while (progress := self.progress()).state is not BatchState.FINISHED:
            time.sleep(wait.pause(progress))
        return progress

    async def ajoin(self, timeout: float | None = None) -> BatchProgress:
        """The same for async code."""
        wait = Wait(timeout)
        while (progress := await self.aprogress()).state is not BatchState.FINISHED:  # noqa: ASYNC110  # as Dibs.ajoin
            await asyncio.sleep(wait.pause(progress))
        return progress

    def cancel(self) -> int:
        """Close it, and cancel what is left of it; how many jobs that were.

        >>> from dibs import Dibs
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def resize(image: int) -> None: ...
        >>> with app.batch() as batch:
        ...     ids = batch.add(resize.call(image=n) for n in range(3))
        >>> print(batch.cancel(), batch.progress().state)
        3 FINISHED
        """
        self.engine.run(batches.close(self.id))
        return self._all(batches.cancel_some)

    async def acancel(self) -> int:
        """The same for async code."""
        await self.engine.arun(batches.close(self.id))
        return await self._aall(batches.cancel_some)

    def retry(self) -> int:
        """Let its FAILED jobs run again; how many there were. A batch that has finished stays so: hooks fire once."""
        return self._all(batches.retry_some)

    async def aretry(self) -> int:
        """The same for async code."""
        return await self._aall(batches.retry_some)

    def _all(self, step: Callable[..., Operation[Bulk]]) -> int:
        done, cursor = 0, 0
        while True:
            bulk = self.engine.run(step(self.id, after=cursor))
            done += bulk.done
            if bulk.cursor is None:
                return done
            cursor = bulk.cursor

    async def _aall(self, step: Callable[..., Operation[Bulk]]) -> int:
        done, cursor = 0, 0
        while True:
            bulk = await self.engine.arun(step(self.id, after=cursor))
            done += bulk.done
            if bulk.cursor is None:
                return done
            cursor = bulk.cursor

    def _run(self, operation: Operation[T], connection: Any) -> T:
        return self.engine.run(operation) if connection is None else run_on(self.engine, connection, operation)

    async def _arun(self, operation: Operation[T], connection: Any) -> T:
        if connection is None:
            return await self.engine.arun(operation)
        return await arun_on(self.engine, connection, operation)


class Batches:
    """The part of `Dibs` that has batches."""

    engine: Engine

    def batch(
        self,
        *,
        name: str | None = None,
        on_complete: Task[..., Any] | Call | None = None,
        on_success: Task[..., Any] | Call | None = None,
        on_failure: Task[..., Any] | Call | None = None,
        connection: Any = None,
    ) -> Batch:
        """A batch of jobs, begun by `with` or `async with`, closed when the block ends.

        When all of its jobs are final, `on_complete` is added, and `on_success` if all were SUCCESSFUL, else
        `on_failure`: each exactly once, in the transaction that made the last job final. A task is called with
        `batch_id`; a `task.call(...)` as it is. `connection`: the batch, its jobs and its end belong to your own
        transaction.

        >>> from dibs import Dibs
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.task
        ... def report(batch_id: int) -> None: ...
        >>> with app.batch(name="images", on_complete=report) as batch:
        ...     print(batch.id)
        1
        """
        if name is not None:
            checked_name("name", name)
        wanted = hooks(on_complete=on_complete, on_success=on_success, on_failure=on_failure)
        return Batch(self.engine, name=name, hooks=wanted, connection=connection)

    def get_batch(self, batch_id: int) -> Batch:
        """A batch that has begun, by its id.

        >>> from dibs import Dibs
        >>> Dibs("sqlite:///shop.db").get_batch(7)
        Traceback (most recent call last):
        ...
        dibs.errors.BatchNotFound: There is no batch 7. It may be past its retention.
        """
        found = self.engine.run(batches.progress(batch_id))
        return Batch(self.engine, BatchId(found.id), name=found.name)

    async def aget_batch(self, batch_id: int) -> Batch:
        """The same for async code."""
        found = await self.engine.arun(batches.progress(batch_id))
        return Batch(self.engine, BatchId(found.id), name=found.name)


def batch_of(engine: Engine, job_id: int) -> Batch | None:
    """The batch of a job that is not final, if it has one."""
    found = engine.run(batches.of_job(job_id))
    return None if found is None else Batch(engine, found)


async def abatch_of(engine: Engine, job_id: int) -> Batch | None:
    """The same for async code."""
    found = await engine.arun(batches.of_job(job_id))
    return None if found is None else Batch(engine, found)
