"""Tasks in processes of their own: for work that keeps a core busy, and for limits that hold whatever the code does.

One process for each job that runs, kept for the next ones; both sides talk over a socket. A job that takes too long, or
is no longer ours, is killed with all that it started. A process whose worker is gone kills itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from dibs.errors import ProcessDied
from dibs.job import Claimed, Lease
from dibs.task import Declared
from dibs.worker.frames import Frames, framed
from dibs.worker.stats import memory
from dibs.worker.supervisor import died

log = logging.getLogger("dibs")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SOON, LATER = 0.002, 0.05  # seconds that a job waits for a process before another is begun: up to CORES + 1, and after
STARTING = 60.0  # seconds for a process to begin and import a task
CHILD = (sys.executable, "-m", "dibs.worker.child")


class Slot(asyncio.Protocol):
    """One process, and the socket to it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.frames = Frames()
        self.answer: asyncio.Future[list[Any]] | None = None
        self.code: int | None = None  # that it ended with
        self.prepared: set[str] = set()
        self.tell: Callable[[bytes], None] = lambda document: None
        self.output: bytes | None = None  # what the program of a command has said so far
        self.transport: asyncio.WriteTransport | None = None
        self.ours, theirs = socket.socketpair()
        with theirs:
            self.process = _begin(theirs.fileno())
        threading.Thread(target=self._wait, name="dibs-process", daemon=True).start()

    async def connect(self) -> None:
        """Say where things are; it reads on when it is ready."""
        transport, _ = await self.loop.create_unix_connection(lambda: self, sock=self.ours)
        self.transport = transport
        main = sys.modules["__main__"]
        transport.write(framed([sys.path, getattr(main, "__file__", None)]))

    @property
    def alive(self) -> bool:
        """As far as we know."""
        return self.code is None and self.transport is not None and not self.transport.is_closing()

    async def prepare(self, task: Declared) -> None:
        """Have it import the task, which takes as long as it takes and is not the job's own time."""
        if task.name not in self.prepared:
            async with asyncio.timeout(STARTING):
                if self.transport is None:
                    await self.connect()
                await self._call([*task.place])
            self.prepared.add(task.name)

    async def run(self, task: Declared, job: Claimed, worker: str, tell: Callable[[Lease, bytes], None]) -> list[Any]:
        """What one job came to, as `child.answer` says it."""
        self.tell, self.output = (lambda document: tell(job.lease, document)), None
        attempt = job._replace(rank=0, finishing=0, run_at=None)  # of no interest over there
        return await self._call([*task.place, worker, list(attempt)])

    async def _call(self, message: list[Any]) -> list[Any]:
        if not self.alive or self.transport is None:
            raise ProcessDied(died(self.code or -signal.SIGKILL))
        self.answer = self.loop.create_future()
        self.transport.write(framed(message))
        return await self.answer

    def kill(self) -> None:
        """With all that it started."""
        if self.code is None:
            _kill_group(self.process.pid)
        self._close()

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.close()
        else:
            self.ours.close()

    def data_received(self, data: bytes) -> None:
        """It reports progress, or what a command says, or has done."""
        for kind, *rest in self.frames.feed(data):
            if kind == "progress":
                self.tell(*rest)
            elif kind == "output":
                (self.output,) = rest
            elif self.answer is not None and not self.answer.done():
                self.answer.set_result([kind, *rest])

    def connection_lost(self, error: Exception | None) -> None:
        """The process has ended, or the job closed its files; in both cases it is of no more use."""
        self.kill()

    def _wait(self) -> None:
        code = self.process.wait()
        _kill_group(self.process.pid)  # what it has started and left behind
        with suppress(RuntimeError):  # the loop has ended before
            self.loop.call_soon_threadsafe(self._ended, code)

    def _ended(self, code: int) -> None:
        self.code = code
        self._close()
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ProcessDied(died(code)))


class Processes:
    """The processes of one worker: as many as its jobs keep busy, the last one used first."""

    def __init__(self, megabytes: int | None = None) -> None:
        self.megabytes = megabytes  # one that has grown over so many is not used again
        self.idle: list[Slot] = []
        self.wanted: list[asyncio.Future[Slot | None]] = []
        self.count = self.starting = 0
        self.told = 0  # who were told to begin another, and have not yet

    @asynccontextmanager
    async def slot(self, task: Declared) -> AsyncIterator[Slot]:
        """One that has imported the task. Whoever leaves without an answer has killed it."""
        slot = await self._slot()
        try:
            self.starting += 1
            try:
                await slot.prepare(task)
            finally:
                self.starting -= 1
            yield slot
        except BaseException:  # cancelled, too late, or dead
            slot.kill()
            self.count -= 1
            raise
        self._free(slot)

    async def _slot(self) -> Slot:
        """An idle one; else one that becomes so soon, for that takes less time than to begin another."""
        while self.idle:
            slot = self.idle.pop()
            if slot.alive:
                return slot
            self.count -= 1
        return (await self._soon() if self.count else None) or self._another()

    async def _soon(self) -> Slot | None:
        """None: there is none soon, and whoever hears that begins another."""
        wanted: asyncio.Future[Slot | None] = asyncio.get_running_loop().create_future()
        self.wanted.append(wanted)
        self._wait(wanted)
        try:
            slot = await wanted
        except BaseException:
            if wanted.done() and not wanted.cancelled():
                self._unused(wanted.result())
            raise
        finally:
            self.wanted.remove(wanted)
        if slot is None:
            self.told -= 1
        return slot

    def _wait(self, wanted: asyncio.Future[Slot | None]) -> None:
        patience = SOON if self.count <= CORES else LATER  # who has answered waits for its next job
        asyncio.get_running_loop().call_later(patience, self._not_soon, wanted)

    def _not_soon(self, wanted: asyncio.Future[Slot | None]) -> None:
        if wanted.done():
            return
        if self.starting or self.told:  # when that one has begun, it may be quick
            self._wait(wanted)
        else:
            self.told += 1
            wanted.set_result(None)

    def _unused(self, slot: Slot | None) -> None:
        if slot is None:
            self.told -= 1
        else:
            self._free(slot)

    def _another(self) -> Slot:
        self.count += 1
        return Slot()

    def _free(self, slot: Slot) -> None:
        if self._has_grown(slot):
            slot.kill()
            self.count -= 1
            return
        for wanted in self.wanted:
            if not wanted.done():
                wanted.set_result(slot)
                return
        self.idle.append(slot)

    def _has_grown(self, slot: Slot) -> bool:
        if self.megabytes is None or not slot.alive:
            return False
        with suppress(OSError):  # it has ended just now
            if (used := memory(slot.process.pid)) > self.megabytes:
                log.info("Process %d of tasks is ended, it has grown to %.0f MB", slot.process.pid, used)
                return True
        return False

    def close(self) -> None:
        """End them; what runs is killed by whoever waits for it."""
        for slot in self.idle:
            slot.kill()
        self.idle.clear()


def _begin(end: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # our own program
        [*CHILD, str(end)],
        stdin=subprocess.DEVNULL,
        pass_fds=[end],
        process_group=0,  # to be killed with all that it starts
    )


def _kill_group(number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)
