"""Tasks that a job begins beside itself. asyncio lets SystemExit and KeyboardInterrupt of any task out of the loop, and
so of the worker: in those of a job they are failures like any other.

The tasks of anybody else who shares the loop are made as they were.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from dibs.context import lease_here

Factory = Callable[..., asyncio.Future[Any]]

LEAVING = (SystemExit, KeyboardInterrupt)


class LeftByTask(Exception):
    """A task that a job began was to end the whole process: sys.exit, or what Ctrl-C raises."""

    def __init__(self, error: BaseException) -> None:
        (said,) = traceback.format_exception_only(error)
        super().__init__(f"{said.strip()}, in a task that the job began")


class Contained(Coroutine[Any, Any, Any]):
    """A coroutine that does not end the process. No coroutine around it: one that is cancelled before its first step
    would leave the inner one behind."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine

    def send(self, value: Any) -> Any:
        """Its next step."""
        try:
            return self.coroutine.send(value)
        except LEAVING as error:
            raise LeftByTask(error) from error

    def throw(self, *error: Any) -> Any:
        """Its next step, which begins with an error."""
        try:
            return self.coroutine.throw(*error)
        except LEAVING as left:
            raise LeftByTask(left) from left

    def close(self) -> None:
        """It is not awaited any more."""
        self.coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        """What debuggers ask of it."""
        return getattr(self.coroutine, name)


class JobTasks:
    """The task factory of a loop in which jobs run."""

    def __init__(self, others: Factory | None) -> None:
        self.others = others

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        """Make one."""
        made = coroutine if lease_here() is None else Contained(coroutine)
        if self.others is None:
            return asyncio.Task(made, loop=loop, **options)
        return self.others(loop, made, **options)


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, for as long as the loop is there: jobs that stop may still have tasks, and it costs the others
    next to nothing."""
    if not isinstance(loop.get_task_factory(), JobTasks):
        loop.set_task_factory(JobTasks(loop.get_task_factory()))
