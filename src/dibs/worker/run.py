"""Running one job: its payload becomes arguments, its end an outcome. User code is called here and nowhere else."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

from dibs.batches import abatch_of, batch_of
from dibs.context import CurrentJob, Snooze, enter
from dibs.engines.engine import Engine
from dibs.errors import ConfigError, DibsError
from dibs.job import Claimed, JobState, Lease
from dibs.lifecycle import (
    HOOK_TRIES,
    RECONCILE_TRIES,
    SUCCESS,
    Committed,
    Done,
    Errored,
    Finished,
    Outcome,
    Released,
    Snoozed,
    Successful,
    Unanswered,
    failure,
    hook_is_spent,
)
from dibs.operations import adopted, claims, jobs
from dibs.operations.adopted import Source
from dibs.operations.claims import Settle, Turn
from dibs.operations.operation import Operation
from dibs.payload import decode, encode
from dibs.provider import ProviderTask
from dibs.retry import Permanent, RetryAfter, pause
from dibs.task import AlreadyDone, Declared
from dibs.worker.commands import keep, kept
from dibs.worker.forks import forks_before
from dibs.worker.processes import Processes
from dibs.worker.provider import Providers
from dibs.worker.threads import DaemonThreads
from dibs.worker.transaction import JobTransaction

log = logging.getLogger("dibs")

OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
LONGEST_ERROR, LONGEST_TRACEBACK = 2_000, 8_000
KILLED = ", and its process was killed"
UNSTOPPABLE = ". It is a thread, which nobody can stop: it goes on, and nothing that it writes is accepted"

Run: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[CurrentJob, Run], Awaitable[Any]]


@dataclass(slots=True)
class Runner:
    """What jobs are run with."""

    engine: Engine
    worker: str
    threads: DaemonThreads
    tell: Callable[[Lease, bytes], None]
    middleware: Sequence[Middleware] = field(default_factory=tuple)
    processes: Processes = field(default_factory=Processes)
    forks: int = field(default_factory=forks_before)
    sources: Mapping[str, Source] = field(default_factory=dict)
    public_url: str = ""
    app: Any = None  # a Dibs, which this layer does not know: what the job of a hook asks
    providers: Providers = field(init=False)
    batches: tuple[Callable[[int], Any], Callable[[int], Any]] = field(init=False)  # how a job finds its own

    def __post_init__(self) -> None:
        self.providers = Providers(self.engine, self._method, self._failed_there, self.public_url)
        self.batches = partial(batch_of, self.engine), partial(abatch_of, self.engine)

    def close(self) -> None:
        """No more jobs: threads and processes end when what they run has ended or was stopped."""
        self.threads.shutdown()
        self.processes.close()

    def context(self, task: Declared, job: Claimed) -> CurrentJob:
        """What the task's code sees of its job."""

        def begin(current: CurrentJob, session: Any) -> JobTransaction:
            if task.submits:
                raise ConfigError("A job that is handed to a provider has no transaction: the provider finishes it.")
            return JobTransaction(
                self.engine, current, lambda: self._settle(task, job, _success(task, current.result)), session
            )

        return CurrentJob(job, self.worker, self.tell, begin, self.batches)

    def _settle(self, task: Declared, job: Claimed, change: Done) -> Operation[Turn]:
        settles = [Settle(job.lease, change, task.keep, job.attempts, task.row_key(job))]
        source = self.sources.get(job.type)
        return claims.settle(settles) if source is None else adopted.settle(source, settles)

    async def run(self, task: Declared, job: Claimed, current: CurrentJob) -> Outcome | Committed:
        """The outcome of one attempt. Told by us to stop, it was handed back: the attempt is not used."""
        began = time.monotonic()
        permanent = False
        enter(current)
        try:
            if job.suspect and task.reconcile is not None and not hook_is_spent(job):
                answered = await self._reconciled(task, job, current, began)
                if answered is not None:
                    return answered
            if isinstance(task, ProviderTask):
                came_to = await self.providers.run(task, job, current)
                if came_to is not None:
                    return came_to
            if job.finishing > 0:
                return await self._finish(task, job, current)
            permanent = True  # arguments that cannot be read will not be better next time
            arguments = task.signature.load(job.payload)
            permanent = False
            if task.is_simple and not self.middleware:  # most: as few coroutines in each other as can be
                result = await task.function(**arguments)
            else:
                result = await self._called(task, job, arguments, current)
            if current.settled:
                return Committed(SUCCESS)
            permanent = True  # likewise a result that cannot be stored
            return Successful(_success(task, result).result)
        except BaseException as error:  # user code may raise anything, sys.exit included; the worker lives on
            if current.settled:
                return _committed(job)
            if current.cancelled:
                return Released()
            if isinstance(error, Snooze):
                return Snoozed(error.seconds)
            if isinstance(error, FailedElsewhere):
                return error.outcome
            if job.finishing > 0:
                asked = isinstance(task, ProviderTask) and not current.began
                what = "reconcile" if asked else "on_failure hook"
                log.warning("The %s of job %s raised, and is tried again", what, job.id, exc_info=error)
            return _errored(task, job, error, self.worker, time.monotonic() - began, permanent=permanent)
        finally:
            _only_after(self.forks)

    async def _called(self, task: Declared, job: Claimed, arguments: dict[str, Any], current: CurrentJob) -> Any:
        async def innermost() -> Any:
            if task.process:
                return await self._in_process(task, job, arguments, current)
            return await self._call(task, task.function, arguments, task.is_async)

        return await self._around(current, innermost)

    async def _around(self, current: CurrentJob, run: Run) -> Any:
        """Inside the middleware."""
        for around in reversed(self.middleware):
            run = _wrapped(around, current, run)
        return await run()

    async def _method(self, task: ProviderTask, method: Callable[[], Any], current: CurrentJob | None = None) -> Any:
        """One of a provider's class, in its own way, within its time. (A submit in a thread is timed by who waits.)"""

        async def innermost() -> Any:
            if not inspect.iscoroutinefunction(method):
                return await self._in_thread(method, task.timeout if current is None else None)
            return await (method() if task.timeout is None else _timed(task.timeout, method()))

        return await (innermost() if current is None else self._around(current, innermost))

    def _failed_there(self, task: ProviderTask, job: Claimed, error: BaseException) -> Errored:
        return _errored(task, job, error, self.worker, 0.0, permanent=False)

    async def _call(
        self, task: Declared, function: Callable[..., Any], arguments: dict[str, Any], is_async: bool
    ) -> Any:
        """In its own way, within its time."""
        if is_async:
            if task.timeout is None:
                return await function(**arguments)
            return await _timed(task.timeout, function(**arguments))
        return await self._in_thread(partial(function, **arguments), task.timeout)

    async def _in_thread(self, function: Callable[[], Any], timeout: float | None) -> Any:
        running = self.threads.run(partial(copy_context().run, _here, function, self.forks))
        result, error = await (running if timeout is None else _timed(timeout, running, UNSTOPPABLE))
        if error is not None:
            raise error
        return result

    async def _in_process(self, task: Declared, job: Claimed, arguments: dict[str, Any], current: CurrentJob) -> Any:
        limit = task.limit(arguments)
        async with self.processes.slot(task) as slot:
            running = slot.run(task, job, self.worker, self.tell)
            try:
                answer = await (running if limit is None else _timed(limit, running, KILLED))
            except Exception as error:
                keep(error, slot.output)
                raise
        match answer:
            case ["successful", result]:
                return decode(result)
            case ["committed"]:
                current.settled = True
            case ["snoozed", seconds]:
                raise Snooze(seconds)
            case ["errored", *outcome]:
                raise FailedElsewhere(Errored(*outcome))
        return None

    async def _reconciled(self, task: Declared, job: Claimed, current: CurrentJob, began: float) -> Outcome | None:
        """Its last attempt left no outcome: was the work in fact done? Until that is known it is not run again."""
        try:
            return await self._asked(task, job)
        except BaseException as error:
            if current.cancelled:
                raise
            tries = await self._unanswered(job) + 1
            seconds = time.monotonic() - began
            if tries < RECONCILE_TRIES:
                delay, trouble = _delay(task, tries, error)
                said = f"Its reconcile raised {_described(error)}"
                return Unanswered(_failure(job, error, self.worker, seconds, said, reconcile=tries, **trouble), delay)
            said = (
                f"Its last attempt left no outcome, and its reconcile raised {tries} times: nobody knows whether the "
                f"work was done, so it was not run again. The last time: {_described(error)}"
            )
            return Finished("its reconcile has no answer", _failure(job, error, self.worker, seconds, said))

    async def _unanswered(self, job: Claimed) -> int:
        """How often its reconcile has raised since its last attempt; each is among its failures."""
        try:
            failures = (await self.engine.arun(jobs.get(job.id))).failures
        except DibsError:
            return 0  # it is counted the next time
        last = failures[-1] if failures else {}
        return int(last.get("reconcile", 0)) if last.get("attempt") == job.attempts else 0

    async def _asked(self, task: Declared, job: Claimed) -> Successful | None:
        assert task.reconcile is not None
        is_async = inspect.iscoroutinefunction(task.reconcile)
        answer = await self._call(task, task.reconcile, task.signature.load(job.payload), is_async)
        if answer is None:
            return None
        if not isinstance(answer, AlreadyDone):
            raise TypeError(f"reconcile of {task.name} answered {type(answer).__name__}; say Done(result) or None")
        log.warning("Job %s was done already: a duplicate was prevented", job.id)
        return Successful(_success(task, answer.result).result)

    async def _finish(self, task: Declared, job: Claimed, current: CurrentJob) -> Outcome | Committed:
        """There is nothing left to try: the hook and FAILED, in one transaction."""
        if task.on_failure is None:
            return Finished()
        if hook_is_spent(job):
            return await self._given_up(job)
        failed = replace(await self.engine.arun(jobs.get(job.id)), app=self.app)
        transaction = JobTransaction(self.engine, current, lambda: self._settle(task, job, Done(JobState.FAILED)))
        if inspect.iscoroutinefunction(task.on_failure):
            async with transaction as connection:
                await self._call(task, partial(task.on_failure, failed, connection), {}, is_async=True)
        else:

            def in_thread(hook: Callable[..., Any] = task.on_failure) -> None:
                with transaction as connection:
                    hook(failed, connection)

            await self._in_thread(in_thread, task.timeout)
        return _committed(job)

    async def _given_up(self, job: Claimed) -> Finished:
        said = f"Its on_failure hook was tried {HOOK_TRIES} times, and given up"
        with suppress(Exception):  # it may be that nobody can read the job, and that this is why
            said = f"{(await self.engine.arun(jobs.get(job.id))).error}. {said}"
        return Finished("given up", encode(failure(job.attempts, said, worker=self.worker)))


class FailedElsewhere(Exception):
    """What middleware sees of a task that raised in a process of its own."""

    def __init__(self, outcome: Errored) -> None:
        self.outcome = outcome
        super().__init__(decode(outcome.failure)["error"])


async def _timed(seconds: float, work: Awaitable[Any], more: str = "") -> Any:
    """Within its time by our own clock; a timeout of the task's own is told apart."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"it ran longer than {seconds:g} s{more}") from error
        raise


def _wrapped(around: Middleware, current: CurrentJob, run: Run) -> Run:
    async def wrapped() -> Any:
        return await around(current, run)

    return wrapped


def _here(function: Callable[[], Any], forks: int) -> Any:
    try:
        return function()
    finally:
        _only_after(forks)


def _only_after(forks: int) -> None:
    """A copy of us that user code has forked must not go on as a worker: it would use our connections."""
    if forks_before() != forks:
        os._exit(1)


def _committed(job: Claimed) -> Committed:
    """What its own transaction has made of it."""
    return Committed(Done(JobState.FAILED) if job.finishing > 0 else SUCCESS)


def _success(task: Declared, result: Any) -> Done:
    return SUCCESS if result is None else Done(JobState.SUCCESSFUL, encode(result, task.max_payload, what="result"))


def _errored(
    task: Declared, job: Claimed, error: BaseException, worker: str, seconds: float, *, permanent: bool
) -> Errored:
    """Whether and when to try again, and what is kept of it."""
    permanent = permanent or isinstance(error, Permanent)
    if task.retry_on is not None and not isinstance(error, (*task.retry_on, RetryAfter)):
        permanent = True
    delay, trouble = _delay(task, job.attempts, error)
    return Errored(_failure(job, error, worker, seconds, **trouble), permanent, delay)


def not_begun(job: Claimed, error: BaseException, worker: str) -> Errored:
    """Its code could not even be found; a mistake in how it is written will not be better next time."""
    return Errored(_failure(job, error, worker, 0.0), isinstance(error, ConfigError))


def _delay(task: Declared, tries: int, error: BaseException) -> tuple[float, dict[str, str]]:
    """What the task's policy says, or the error itself; what was wrong with that."""
    seconds, trouble = pause(task.retry if not isinstance(error, RetryAfter) else lambda attempt: error.seconds, tries)
    return seconds, {} if trouble is None else {"retry_error": _clean(_described(trouble), LONGEST_ERROR)}


def _failure(
    job: Claimed, error: BaseException, worker: str, seconds: float, said: str | None = None, **more: Any
) -> bytes:
    text = "".join(traceback.format_exception(type(error), error, _from_task(error.__traceback__)))
    return encode(
        failure(
            job.attempts,
            _clean(said or _described(error), LONGEST_ERROR),
            traceback=_clean(text, LONGEST_TRACEBACK),
            worker=worker,
            seconds=round(seconds, 6),
            **kept(error),
            **more,
        )
    )


def _from_task(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames of ours that lead to the task; those are of no help to whoever wrote it."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(OURS):
        frame = frame.tb_next
    return frame or trace


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ raises
        return f"{type(error).__name__}: (its text could not be made)"


def _clean(text: str, longest: int) -> str:
    """The end of a text, without what databases cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\\0")[-longest:]
