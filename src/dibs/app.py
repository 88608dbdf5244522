"""Dibs: what a user holds. It wires the rest together and holds no rules of its own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from dibs.batches import Batches
from dibs.calls import Call, Task, new_jobs
from dibs.config import Settings, database_url
from dibs.engines.callers import arun_on, run_on
from dibs.engines.open import open_engine
from dibs.errors import ConfigError, DuplicateTask, InvalidOption
from dibs.job import Job, JobId, NewJob
from dibs.operations import jobs, tokens
from dibs.operations.operation import Operation
from dibs.retry import Policy
from dibs.task import AlreadyDone as Done
from dibs.task import Declared, Options
from dibs.tokens import signed, until
from dibs.waiting import Wait
from dibs.workplace import Workplace

if TYPE_CHECKING:
    from dibs.adopted.source import Adopted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SIGNING = "subscriptions"  # the name of the key

# What is said of a task, and not again for a single job.
DECLARED = {"name", "retry", "retry_on", "timeout", "process", "keep", "on_failure", "reconcile", "aliases"}
DECLARED |= {"poll_every", "give_up_after", "after_crash"}  # of a provider's


class Declare(Protocol):
    """`@app.task(...)`: what it makes of a function keeps the function's own types."""

    def __call__(self, function: Callable[P, R], /) -> Task[P, R]:
        """Declare it."""


class Dibs(Workplace, Batches):
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
        self._keys: dict[str, bytes] = {}
        super().__init__(open_engine(self.url, self.settings), self.settings)

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
        process: bool = False,
        keep: int = 7,
        tags: Sequence[str] = (),
        on_failure: Callable[[Job, Any], Any] | None = None,
        reconcile: Callable[..., Done | Awaitable[Done | None] | None] | None = None,
        aliases: Sequence[str] = (),
    ) -> Declare: ...

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

    def commands(self, **options: Any) -> Task[..., dict[str, Any]]:
        """Let jobs run programs, which is off unless you say so: whoever can add jobs can then run any program here.

        A list of arguments, never a text for a shell; `stdin`, `environment` and `timeout` if wanted. The result has
        the exit code and the tail of both outputs; any code but 0 is a failure. Options are those of a task.

        >>> app = Dibs("sqlite:///shop.db")
        >>> command = app.commands(max_attempts=1)
        >>> job = command.enqueue(arguments=["python3", "-"], stdin="print(6 * 7)", timeout=60)
        >>> print(app.drain().successful, job.refresh().result)
        1 {'exitCode': 0, 'stdout': '42\\n', 'stderr': ''}
        """
        from dibs.worker.commands import NAME, Command, command

        return self._declare(command, Command, **{"name": NAME, **options, "process": True})

    def provider_task(
        self,
        kind: type | None = None,
        /,
        *,
        poll_every: float = 30,
        give_up_after: float = 86400,
        after_crash: Literal["resubmit", "hold"] | None = None,
        timeout: float | None = 60,
        **options: Any,
    ) -> Any:
        """Declare a class that hands its work to a provider who charges for it: once for each job, whatever dies when.

        `submit` returns the provider's task id; `reconcile` tells whether the provider has accepted a submit that did
        not return; `poll` (or `poll_many`, or a callback) tells what became of it; `cancel` if wanted. Without
        `reconcile` say `after_crash`. `timeout` is for each call of the provider; other options are those of a task.

        >>> from dibs import Done
        >>> app = Dibs("sqlite:///shop.db")
        >>> @app.provider_task(queue="llm", poll_every=0.01, after_crash="resubmit")
        ... class Summarise:
        ...     async def submit(self, text: str, key: str) -> str:
        ...         return f"task-{key}"  # ask the provider, and say the key to it
        ...     async def poll(self, task_id: str) -> Done:
        ...         return Done("short", usage={"tokens": 12})
        >>> job = Summarise.enqueue(text="a long text")
        >>> print(app.drain())  # doctest: +ELLIPSIS
        claimed 2 of 2 jobs in ... s: 1 successful, 1 processing
        >>> job.refresh().result, job.refresh().usage
        ('short', {'tokens': 12})
        """
        from dibs.provider import ProviderTask

        own = {"poll_every": poll_every, "give_up_after": give_up_after, "after_crash": after_crash, "timeout": timeout}

        def declare(kind: type) -> Task[Any, Any]:
            return self._declare(kind, ProviderTask, **own, **options)

        return declare if kind is None else declare(kind)

    def adopt(
        self,
        table: str,
        *,
        key: str | Sequence[str],
        status: str,
        states: Mapping[str, str | int],
        order_by: str | Sequence[str] = (),
        priority: str | None = None,
        started_at: str | None = None,
        finished_at: str | None = None,
        worker: str | None = None,
        error: str | None = None,
        attempts: str | None = None,
        where: str | None = None,
        output: tuple[str, str | Sequence[str]] | None = None,
        stuck_after: float = 300,
        batch: int = 5,
        poll: float = 1,
        max_attempts: int = 3,
        retry: Policy | float | Sequence[float] | None = None,
        retry_on: Sequence[type[BaseException]] | None = None,
        timeout: float | None = None,
        on_failure: Callable[[Job, Any], Any] | None = None,
    ) -> Adopted:
        """Make a table of yours a queue, without moving a row: its rows are claimed, fenced, retried and recovered.

        Only the table, its key, its status column and the words for the states are required. Further columns that are
        named are kept up to date. Decorate the function for a row with `.process`.

        >>> app = Dibs("sqlite:///shop.db")
        >>> stickers = app.adopt("stickers", key="id", status="status",
        ...     states=dict(PENDING="queued", RUNNING="started", SUCCESSFUL="completed", FAILED="failed"))
        >>> stickers.name
        'stickers'
        """
        from dibs.adopted.mapping import adoption
        from dibs.adopted.source import Adopted

        said = adoption(
            table,
            key=key,
            status=status,
            states=states,
            order_by=order_by,
            priority=priority,
            started_at=started_at,
            finished_at=finished_at,
            worker=worker,
            error=error,
            attempts=attempts,
            where=where,
            output=output,
            stuck_after=stuck_after,
            batch=batch,
            poll=poll,
            max_attempts=max_attempts,
        )
        if said.name in self.adopted or said.name in self.tasks:
            raise DuplicateTask(said.name)
        for declared in self.tasks.values():
            _rows_alone(declared, {said.name})
        options = {"retry": retry, "retry_on": retry_on, "timeout": timeout, "on_failure": on_failure}
        self.adopted[said.name] = Adopted(said, self._know, options)
        return self.adopted[said.name]

    def _know(self, declared: Declared) -> None:
        for name in (declared.name, *declared.aliases):
            if name in self.tasks:
                raise DuplicateTask(name)
        self.tasks |= dict.fromkeys((declared.name, *declared.aliases), declared)

    def _declare(
        self, function: Callable[..., Any], kind: Callable[..., Declared] = Declared, /, **options: Any
    ) -> Task[Any, Any]:
        own = {option: options.pop(option) for option in DECLARED & options.keys()}
        declared = kind(function, options=Options().but(**options), max_payload=self.settings.max_payload, **own)
        _rows_alone(declared, self.adopted)
        self._know(declared)
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

    def subscribe_token(self, job_id: int, *, expires: float = 3600) -> str:
        """A token with which a web page may watch this job, and nothing else, for so many seconds.

        >>> Dibs("sqlite:///shop.db").subscribe_token(7).startswith("dibsw_7_")
        True
        """
        if SIGNING not in self._keys:
            self._keys[SIGNING] = bytes.fromhex(self.engine.run(tokens.secret(SIGNING, secrets.token_hex(32))))
        return signed(job_id, until(expires, time.time()), self._keys[SIGNING])

    async def asubscribe_token(self, job_id: int, *, expires: float = 3600) -> str:
        """The same for async code."""
        return signed(job_id, until(expires, time.time()), await self.signing_key())

    async def signing_key(self, name: str = SIGNING) -> bytes:
        """What tokens to watch a job, or addresses to call back, are signed with: a secret in the database."""
        if name not in self._keys:
            self._keys[name] = bytes.fromhex(await self.engine.arun(tokens.secret(name, secrets.token_hex(32))))
        return self._keys[name]

    def _run(self, operation: Operation[T], connection: Any) -> T:
        return self.engine.run(operation) if connection is None else run_on(self.engine, connection, operation)

    async def _arun(self, operation: Operation[T], connection: Any) -> T:
        if connection is None:
            return await self.engine.arun(operation)
        return await arun_on(self.engine, connection, operation)


def _rows_alone(declared: Declared, adopted: Collection[str]) -> None:
    """The queue of an adopted table is read by nobody who runs tasks."""
    if (queue := declared.options.queue) in adopted:
        problem = f"{queue!r} is an adopted table, where its rows alone are run: no job of {declared.name} would be"
        raise InvalidOption("queue", problem)
