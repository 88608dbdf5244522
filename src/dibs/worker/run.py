"""Running one job: its payload becomes arguments, its end an outcome. User code is called here and nowhere else."""

from __future__ import annotations

import asyncio
import time
import traceback
from concurrent.futures import Executor
from typing import Any

from dibs.job import Claimed
from dibs.lifecycle import Errored, Finished, Outcome, Released, Successful, failure, hook_is_spent
from dibs.payload import encode
from dibs.retry import bounded, exponential
from dibs.task import Declared

LONGEST_ERROR, LONGEST_TRACEBACK = 2_000, 8_000


async def run_job(task: Declared, job: Claimed, *, threads: Executor, worker: str) -> Outcome:
    """The outcome of one attempt. Cancelled from outside, it was handed back: the attempt is not used."""
    if job.finishing:
        return Finished("its hook was tried ten times" if hook_is_spent(job) else None)
    began = time.monotonic()
    permanent = True  # arguments that cannot be read, or a result that cannot be stored, will not be better next time
    try:
        arguments = task.signature.load(job.payload)
        permanent = False
        result = await _call(task, arguments, threads)
        permanent = True
        return Successful(None if result is None else encode(result, task.max_payload, what="result"))
    except BaseException as error:  # user code may raise anything, sys.exit included; the worker lives on
        if _told_to_stop():
            return Released()
        delay, trouble = _delay(task, job)
        return Errored(_failure(job, error, worker, began, **trouble), permanent, delay)


async def _call(task: Declared, arguments: dict[str, Any], threads: Executor) -> Any:
    try:
        async with asyncio.timeout(task.timeout) as limit:
            if task.is_async:
                return await task.function(**arguments)
            return await asyncio.get_running_loop().run_in_executor(threads, _in_thread, task, arguments)
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"it ran longer than {task.timeout:g} s") from error
        raise


def _in_thread(task: Declared, arguments: dict[str, Any]) -> Any:
    try:
        return task.function(**arguments)
    except StopIteration as error:  # no future can carry one: it would wait for ever
        raise RuntimeError("the task raised StopIteration") from error


def _told_to_stop() -> bool:
    """By us. User code may also raise CancelledError by itself, which is a failure like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _delay(task: Declared, job: Claimed) -> tuple[float, dict[str, str]]:
    """What the task's policy says; it is user code too, and where it fails the job still has its next attempt."""
    try:
        return bounded(task.retry(job.attempts)), {}
    except Exception as error:
        return exponential()(job.attempts), {"retry_error": _clean(_described(error), LONGEST_ERROR)}


def _failure(job: Claimed, error: BaseException, worker: str, began: float, **more: str) -> bytes:
    text = "".join(traceback.format_exception(error))
    return encode(
        failure(
            job.attempts,
            _clean(_described(error), LONGEST_ERROR),
            traceback=_clean(text, LONGEST_TRACEBACK),
            worker=worker,
            seconds=round(time.monotonic() - began, 6),
            **more,
        )
    )


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ raises
        return f"{type(error).__name__}: (its text could not be made)"


def _clean(text: str, longest: int) -> str:
    """The end of a text, without what databases cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\\0")[-longest:]
