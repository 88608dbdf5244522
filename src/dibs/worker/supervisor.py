"""The supervisor of worker processes: starts them, replaces those that die, and knows at once that they are dead.

It holds no job and no event loop. Each child has two pipes: by one it learns that it is to stop now, or that its
supervisor is gone (and then stops as if told to), by the other it says under which numbers it is enlisted. A child that
was reaped is dead for certain, so its jobs are freed without waiting for its lease.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dibs.config import environment_with, taken_from_environment
from dibs.errors import DibsError
from dibs.job import WorkerId

log = logging.getLogger("dibs")

PIPES = "DIBS_SUPERVISOR_PIPES"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
LIVED_WELL = 10.0  # seconds after which a death is no longer counted with the ones before


@dataclass
class Child:
    """One worker process."""

    process: subprocess.Popen[bytes]
    lifeline: int  # our end: what is written there hurries the child; when it closes, the child knows that we are gone
    reports: int
    began: float
    rows: list[WorkerId] = field(default_factory=list)
    unread: bytes = b""

    def read(self) -> None:
        """What it has said since."""
        with suppress(BlockingIOError):
            while part := os.read(self.reports, 65536):
                self.unread += part
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            self.rows = [WorkerId(int(number)) for number in line.split()]

    def hurry(self) -> None:
        """Stop now. Not by a signal: two that wait for a process are one, and systemd sends the first to it as well."""
        with suppress(BrokenPipeError, BlockingIOError):  # it has ended, or was told often enough
            os.write(self.lifeline, b"!")

    def close(self) -> None:
        """Let go of its pipes."""
        os.close(self.lifeline)
        os.close(self.reports)


class Supervisor:
    """Keeps so many children alive until it is told to stop."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        recover: Callable[[Sequence[WorkerId]], int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command, self.processes, self.recover, self.clock = list(command), processes, recover, clock
        self.children: list[Child] = []
        self.starts: list[float] = []  # when to start those that are missing
        self.deaths = 0
        self.ready = False  # some child has enlisted: what is wrong now is no mistake of the command line
        self.told = 0  # how often to stop
        self.stopping = False
        self.code = 0
        self.healers: list[threading.Thread] = []

    def run(self) -> int:
        """Until stopped; the exit code."""
        woken, wakes = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
        }
        earlier = signal.set_wakeup_fd(wakes)
        self.starts = [self.clock()] * self.processes
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(woken, selectors.EVENT_READ)
                while self.children or self.starts:
                    self._start_due()
                    selector.select(self._pause())
                    with suppress(BlockingIOError):
                        os.read(woken, 4096)
                    self._obey()
                    self._reap()
        finally:
            signal.set_wakeup_fd(earlier)
            for number, handler in before.items():
                signal.signal(number, handler)
            for end in (woken, wakes):
                os.close(end)
        for healer in self.healers:
            healer.join()
        return self.code

    def _note(self, number: int, frame: object) -> None:
        """A signal, which may come while a child is being started: acting on it waits until that child is known."""
        if number != signal.SIGCHLD:
            self.told += 1

    def _obey(self) -> None:
        """Stop; and what comes after that, even at the same moment: now."""
        told, self.told = self.told, 0
        if told and not self.stopping:
            log.info("Stopping: running jobs may finish; a second signal stops them now")
            self._stop()
            told -= 1
        if told:
            for child in self.children:
                child.hurry()

    def _stop(self) -> None:
        self.stopping, self.starts = True, []
        for child in self.children:
            child.process.send_signal(signal.SIGTERM)

    def _pause(self) -> float | None:
        if not self.starts:
            return None if self.ready else 0.05
        return max(0.0, min(self.starts) - self.clock())

    def _start_due(self) -> None:
        now = self.clock()
        due = [moment for moment in self.starts if moment <= now]
        self.starts = [moment for moment in self.starts if moment > now]
        for _ in due:
            self.children.append(self._start())

    def _start(self) -> Child:
        theirs_life, lifeline = os.pipe()
        reports, theirs_reports = os.pipe()
        os.set_blocking(reports, False)
        os.set_blocking(lifeline, False)
        pipes = (theirs_life, theirs_reports)
        process = subprocess.Popen(  # noqa: S603  # our own command line
            self.command,
            stdin=subprocess.DEVNULL,
            pass_fds=pipes,
            env=environment_with(PIPES, f"{theirs_life},{theirs_reports}"),
            process_group=0,  # the terminal's Ctrl-C is for us, and we pass it on
        )
        for end in pipes:
            os.close(end)
        return Child(process, lifeline, reports, self.clock())

    def _reap(self) -> None:
        for child in list(self.children):
            child.read()
            self.ready = self.ready or bool(child.rows)
            code = child.process.poll()
            if code is not None:
                child.read()
                child.close()
                self.children.remove(child)
                self._buried(child, code)

    def _buried(self, child: Child, code: int) -> None:
        """It is dead for certain: free its jobs, and start another in its place."""
        if child.rows and code != 0:
            healer = threading.Thread(target=self._heal, args=(child.process.pid, child.rows), daemon=True)
            healer.start()
            self.healers = [each for each in self.healers if each.is_alive()] + [healer]
        if self.stopping:
            self.code = self.code or max(code, 0)
            return
        if not self.ready:
            self.code = code if code > 0 else 1
            self._stop()
            return
        pause = 0.0
        if code != 0:
            self.deaths = 1 if self.clock() - child.began > LIVED_WELL else self.deaths + 1
            pause = min(FIRST_PAUSE * 2 ** (self.deaths - 1), LONGEST_PAUSE) if self.deaths > 1 else 0.0
            log.error("Worker process %d %s; another is started in %.1f s", child.process.pid, died(code), pause)
        self.starts.append(self.clock() + pause)

    def _heal(self, pid: int, rows: Sequence[WorkerId]) -> None:
        try:
            freed = self.recover(rows)
        except DibsError as error:
            log.warning("The jobs of process %d wait for its lease to end: %s", pid, error)
            return
        log.info("Freed %d jobs of process %d", freed, pid)


def died(code: int) -> str:
    """How a process ended, for people.

    >>> died(-9), died(1)
    ('was killed by SIGKILL', 'ended with code 1')
    """
    if code >= 0:
        return f"ended with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class Lifeline:
    """A child's side: tell the supervisor who we are, hear that it is in a hurry, and notice when it is gone."""

    def __init__(self, pipes: str) -> None:
        life, reports = pipes.split(",")
        self.life, self.reports = int(life), int(reports)
        os.set_inheritable(self.life, False)
        os.set_inheritable(self.reports, False)

    @classmethod
    def found(cls) -> Lifeline | None:
        """If there is a supervisor; what we start ourselves has none."""
        pipes = taken_from_environment(PIPES)
        return cls(pipes) if pipes else None

    def enlisted(self, rows: Sequence[WorkerId]) -> None:
        """From now on these are our numbers."""
        with suppress(BrokenPipeError):
            os.write(self.reports, " ".join(map(str, rows)).encode() + b"\n")

    def gone(self) -> bool:
        """To be called when the lifeline can be read: either the supervisor is gone, or it wants us to stop now."""
        return os.read(self.life, 1) == b""
