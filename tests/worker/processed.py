"""Tasks in processes of their own. Imported anew by each test, and by those processes, on the DIBS_URL of then."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from dibs import Dibs, Done, Job, Permanent, RetryAfter, current_job
from tests.worker.beats import await_beats

app = Dibs(lease=4.0, beat=0.1)
MARK = "?" if app.engine.name == "sqlite" else "%s"
INSERT = f"insert into effects values ({MARK})"


@app.task(process=True)
def double(n: int) -> dict[str, Any]:
    """Its number, and who ran it."""
    return {"double": 2 * n, "pid": os.getpid(), "job": int(current_job().id), "attempt": current_job().attempt}


@app.task(process=True)
async def adouble(n: int) -> int:
    """The same in a coroutine."""
    await asyncio.sleep(0)
    return 2 * n


@app.task(process=True)
def spread(n: int) -> None:
    """More of its own batch."""
    current_job().batch().add(double.call(n=k) for k in range(n))


@app.task(process=True, max_attempts=1)
def fail(how: str) -> Any:
    """In one of many ways."""
    match how:
        case "raise":
            raise ValueError("on purpose")
        case "permanent":
            raise Permanent("never")
        case "exit":
            sys.exit(3)
        case "result":
            return object()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            ctypes.string_at(0)
        case "close":
            os.closerange(3, 64)
        case "fork":
            if os.fork() == 0:
                time.sleep(60)  # a copy that keeps the socket open
            os._exit(5)
    return None


@app.task(process=True, max_attempts=1)
async def leave() -> None:
    """In a task of its own."""

    async def leaves() -> None:
        sys.exit(3)

    await asyncio.gather(leaves())


@app.task(process=True)
def later() -> str:
    """The first attempt asks for a second."""
    if current_job().attempt == 1:
        raise RetryAfter(0)
    return "second"


@app.task(process=True)
def snooze(path: str) -> str:
    """Once."""
    if not Path(path).exists():
        Path(path).touch()
        current_job().snooze(0)
    return f"attempt {current_job().attempt}"


def never_end(pids: str) -> NoReturn:
    """Leave our own number and a child's, and stay."""
    child = subprocess.Popen(["sleep", "600"])
    Path(pids).write_text(f"{os.getpid()} {child.pid}\n")
    while True:
        time.sleep(60)


@app.task(process=True, timeout=0.5, max_attempts=1)
def hang(pids: str) -> NoReturn:
    """Beyond its time."""
    never_end(pids)


@app.task(process=True)
def wait(pids: str) -> NoReturn:
    """And nobody limits it."""
    never_end(pids)


@app.task(process=True)
def progress() -> None:
    """Say how far it is."""
    for n in range(3):
        current_job().progress(n, 2, f"step {n}")


@app.task(process=True, max_attempts=1)
def write(n: int, error: str = "", dies: bool = False) -> str:
    """An effect in its own transaction."""
    with current_job().transaction() as connection:
        connection.execute(INSERT, [n])
        current_job().result = {"wrote": n}
        if error:
            raise ValueError(error)
    if dies:
        os._exit(1)
    return "not this"


@app.task(process=True, max_attempts=1)
async def awrite(n: int, error: str = "", dies: bool = False) -> str:
    """The same in a coroutine."""
    async with current_job().transaction() as connection:
        await connection.execute(INSERT, [n])
        current_job().result = {"wrote": n}
        if error:
            raise ValueError(error)
    if dies:
        os._exit(1)
    return "not this"


@app.task(process=True, max_attempts=1)
def go_on(done: str) -> None:
    """For some beats after its commit."""
    with current_job().transaction() as connection:
        connection.execute(INSERT, [1])
    await_beats(app)
    Path(done).touch()


def refund(job: Job, connection: Any) -> None:
    """Leave a mark of the job that failed."""
    connection.execute(INSERT, [int(job.id)])


@app.task(process=True, max_attempts=1, on_failure=refund)
def costly() -> None:
    """Fail; the hook then has its turn."""
    raise ValueError("no")


def was_done(n: int) -> Done:
    """It was."""
    return Done({"found": n})


@app.task(process=True, reconcile=was_done)
def once(n: int) -> None:
    """Must not run."""
    raise AssertionError("it was done already")


def plain() -> None:
    """Declared, and not under its own name."""


hidden = app.task(process=True, name="hidden")(plain)
