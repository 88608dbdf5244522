"""A program that drains one job whose last attempt fails, and kills itself at a named point on the way to the end.

python -m tests.scenarios.hooked URL KIND POINT
"""

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from dibs import Dibs, Job
from dibs.worker import run
from dibs.worker.drain import Drain
from dibs.worker.lane import Lane
from dibs.worker.transaction import JobTransaction

KINDS = ("sync", "async")
# Where: the class or module, the function of each kind, and whether before or after it. In the order of a run.
POINTS: dict[str, tuple[Any, tuple[str, str], str]] = {
    "the last attempt has failed": (run, ("_errored", "_errored"), "before"),
    "the failure is an outcome": (run, ("_errored", "_errored"), "after"),
    "the failure is about to be written": (Drain, ("_turn", "_turn"), "before the second"),
    "the failure is written": (Lane, ("turn", "turn"), "after the second"),
    "it is claimed to be finished": (run.Runner, ("_finish", "_finish"), "before"),
    "its transaction is open": (JobTransaction, ("__enter__", "__aenter__"), "after"),
    "the hook begins": (None, ("", ""), "before"),
    "the hook has had its effect": (None, ("", ""), "after"),
    "FAILED is about to be written": (run.Runner, ("_settle", "_settle"), "before"),
    "FAILED is written and not committed": (JobTransaction, ("_fenced", "_fenced"), "after"),
    "it is committed": (JobTransaction, ("__exit__", "__aexit__"), "after"),
    "the end is known to the worker": (run.Runner, ("_finish", "_finish"), "after"),
}


def die() -> None:
    """As the kernel would have it."""
    os.kill(os.getpid(), signal.SIGKILL)


def app_for(url: str, kind: str, point: str = "") -> Dibs:
    """The app; its hook gives the money back."""
    app = Dibs(url, lease=4.0, beat=0.1)
    insert = f"insert into refunds values ({'?' if app.engine.name == 'sqlite' else '%s'})"

    def refund(job: Job, connection: Any) -> None:
        if point == "the hook begins":
            die()
        connection.execute(insert, [job.id])
        if point == "the hook has had its effect":
            die()

    async def arefund(job: Job, connection: Any) -> None:
        if point == "the hook begins":
            die()
        await connection.execute(insert, [job.id])
        if point == "the hook has had its effect":
            die()

    @app.task(name="costly", max_attempts=1, on_failure=refund if kind == "sync" else arefund)
    def costly() -> None:
        raise ValueError("no")

    return app


def arm(kind: str, point: str) -> None:
    """From now on the program dies there."""
    place, names, when = POINTS[point]
    if place is None:
        return
    name = names[KINDS.index(kind)]
    setattr(place, name, deadly(getattr(place, name), when))


def deadly(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    """The same function, and the end."""
    calls = 0

    def strikes(moment: str) -> None:
        if when == moment or (when == f"{moment} the second" and calls == 2):
            die()

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        strikes("before")
        result = function(*args, **kwargs)
        strikes("after")
        return result

    @functools.wraps(function)
    async def awrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        strikes("before")
        result = await function(*args, **kwargs)
        strikes("after")
        return result

    return awrapped if inspect.iscoroutinefunction(function) else wrapped


if __name__ == "__main__":
    _, url, kind, point = sys.argv
    arm(kind, point)
    app_for(url, kind, point).drain()
