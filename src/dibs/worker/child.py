"""A process that runs jobs for a worker, one at a time: `python -m dibs.worker.child SOCKET`. Started by processes.py.

It imports the module of a task when its first job comes. When the worker is gone it kills itself and all that it has
started: what nobody can settle any more must not run on beside its second attempt.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, TypeVar

from dibs.calls import Task
from dibs.context import CurrentJob
from dibs.errors import ConfigError
from dibs.job import Claimed, Lease
from dibs.lifecycle import Committed, Errored, Outcome, Snoozed, Successful
from dibs.task import Declared
from dibs.worker.commands import tell_output
from dibs.worker.contained import contain
from dibs.worker.frames import Frames, framed
from dibs.worker.run import Runner, not_begun
from dibs.worker.threads import DaemonThreads

T = TypeVar("T")

LOOK = 1000  # milliseconds between looks whether the job has closed the socket
MAIN = "__main__"  # of the worker's process, which is not ours


class InPlace(Runner):
    """Runs a function right here, in the main thread; its time limit is the worker's business."""

    told: Callable[[bytes], None]

    async def _in_process(self, task: Declared, job: Claimed, arguments: dict[str, Any], current: CurrentJob) -> Any:
        tell_output(self.told)
        result = task.function(**arguments)
        return await result if task.is_async else result


class Child:
    """The other end of a slot."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.sending = threading.Lock()
        self.frames = Frames()
        self.loop = asyncio.new_event_loop()
        contain(self.loop)
        self.tasks: dict[tuple[str, str], tuple[Declared, Any]] = {}
        self.runners: dict[Any, InPlace] = {}  # by their engines
        self.main: str | None = None

    def run(self) -> None:
        """Until the worker lets go of the socket."""
        threading.Thread(target=self._watch, name="dibs-watch", daemon=True).start()
        try:
            messages = self._messages()
            sys.path[:], self.main = next(messages)
            for module, name, *rest in messages:
                if rest:
                    worker, fields = rest
                    self._send(answer(self._outcome((module, name), worker, Claimed(*fields))))
                else:
                    with suppress(BaseException):  # the job itself will tell
                        self._task(module, name)
                    self._send(["ready"])
        finally:  # the worker is gone, or the job has closed what we need
            _die()

    def _messages(self) -> Iterator[list[Any]]:
        while data := self.connection.recv(65536):
            yield from self.frames.feed(data)

    def _outcome(self, name: tuple[str, str], worker: str, job: Claimed) -> Outcome | Committed:
        try:
            task, engine = self._task(*name)
        except BaseException as error:  # importing is running user code
            return not_begun(job, error, worker)
        inner = self._runner(engine, worker)
        running = inner.run(task, job, inner.context(task, job))
        if task.is_async:
            return self.loop.run_until_complete(running)
        return copy_context().run(_finish, running)

    def _runner(self, engine: Any, worker: str) -> InPlace:
        if (found := self.runners.get(engine)) is None or found.worker != worker:
            found = self.runners[engine] = InPlace(engine, worker, DaemonThreads(1, "none"), self._tell)
            found.told = self._tell_output
        return found

    def _task(self, module: str, name: str) -> tuple[Declared, Any]:
        """What the worker calls so, and the engine that its transactions use."""
        if (module, name) not in self.tasks:
            found: Any = self._module(module)
            for part in name.split("."):
                found = getattr(found, part, None)
            if isinstance(found, Task):
                self.tasks[module, name] = found.declared, found.app.engine  # type: ignore[attr-defined]  # it is a Dibs
            elif isinstance(found, Declared):
                self.tasks[module, name] = found, None  # of our own, and without a database
            else:
                raise ConfigError(
                    f"{module}.{name} is not the task here. A task with process=True is a function at the top level of "
                    "a module, decorated there, so that another process finds it by its name."
                )
        return self.tasks[module, name]

    def _module(self, name: str) -> ModuleType:
        if name != MAIN:
            return import_module(name)
        spec = spec_from_file_location("__dibs_main__", self.main or "")
        if spec is None or spec.loader is None:
            raise ConfigError("A task with process=True cannot be typed into a prompt: put it into a file.")
        module = sys.modules["__dibs_main__"] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def _tell(self, lease: Lease, document: bytes) -> None:
        self._send(["progress", document])

    def _tell_output(self, output: bytes) -> None:
        self._send(["output", output])

    def _send(self, message: list[Any]) -> None:
        with self.sending:
            self.connection.sendall(framed(message))

    def _watch(self) -> None:
        """While a job runs nobody reads; that the worker is gone is noticed all the same. If the job closes the socket,
        whoever waits for it keeps it open: so it is looked at anew every now and then."""
        end, gone = self.connection.fileno(), select.poll()
        gone.register(end, select.POLLHUP | getattr(select, "POLLRDHUP", 0))  # which only Linux has
        ours = os.fstat(end).st_ino
        while not gone.poll(LOOK) and _inode(end) == ours:
            pass
        _die()


def _finish(running: Coroutine[Any, Any, T]) -> T:
    """A coroutine that waits for nothing, since what it calls does not: no loop is needed."""
    try:
        running.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the coroutine's result
    raise RuntimeError("a plain function waited for a loop")


def _inode(file: int) -> int | None:
    try:
        return os.fstat(file).st_ino
    except OSError:
        return None


def _die() -> None:
    os.killpg(os.getpid(), signal.SIGKILL)  # we lead our group


def answer(outcome: Outcome | Committed) -> list[Any]:
    """An outcome, as it travels."""
    match outcome:
        case Successful(result):
            return ["successful", result]
        case Errored(failure, permanent, delay):
            return ["errored", failure, permanent, delay]
        case Snoozed(delay):
            return ["snoozed", delay]
        case Committed():
            return ["committed"]
        case other:
            raise TypeError(f"no attempt comes to {other} here")


if __name__ == "__main__":
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    Child(end).run()
