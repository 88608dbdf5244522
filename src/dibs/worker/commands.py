"""Programs as jobs: a list of arguments, never a text for a shell, in a process of its own, killed with all it started.

Off unless the app turns it on (`app.commands()`): whoever can add jobs can then run programs.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import IO, Annotated, Any, TypeAlias

from msgspec import Meta

from dibs.config import environment_of_command
from dibs.payload import decode, encode
from dibs.retry import Permanent
from dibs.task import Declared

NAME = "dibs.command"
TAIL = 16 * 1024  # bytes that are kept of the end of each output
SAID = 600  # characters of each output in the error of one that failed
SAID_FAILED = 4 * 1024  # and among its failures, of which ten are kept
OFTEN = 0.1  # seconds between reports of a program that runs
KEPT = "dibs_kept"
LONGEST = 86400.0


class CommandFailed(Exception):
    """A program ended with another code than 0."""


Said: TypeAlias = Callable[[bytes], None]
_said: ContextVar[Said] = ContextVar("dibs_command_said")  # who is told of the output of a command that runs


def tell_output(told: Said) -> None:
    """From here on, in this context, somebody is told what a command says while it runs: it may have to be killed."""
    _said.set(told)


def keep(error: BaseException, output: bytes | None) -> None:
    """What the program had said stays with the error that ended it."""
    if output is not None:
        setattr(error, KEPT, decode(output))


def kept(error: BaseException) -> dict[str, Any]:
    """What stays with an error of a command, for the job's failures."""
    found: dict[str, Any] = getattr(error, KEPT, {})
    return found


def command(
    arguments: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100_000)]], Meta(min_length=1, max_length=1000)
    ],
    stdin: str = "",
    environment: dict[str, str] = {},  # noqa: B006  # copied for each job
    timeout: Annotated[float, Meta(gt=0, le=LONGEST)] = 3600.0,
) -> dict[str, Any]:
    """Run a program: its exit code, and the tail of what it wrote. Any code but 0 is a failure, and retried as such."""
    try:
        process = subprocess.Popen(  # noqa: S603  # that is what it is for
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment_of_command(environment),
        )
    except (OSError, ValueError) as error:  # not there, not allowed, a NUL inside
        raise Permanent(f"{arguments[0]} cannot be started: {error}") from error
    report = Report(_said.get(None))
    tails = [Tail(stream, report.changed) for stream in (process.stdout, process.stderr)]
    report.begin(tails)
    feeder = threading.Thread(target=_feed, args=(process.stdin, stdin.encode()), daemon=True)
    feeder.start()
    code = process.wait()
    stdout, stderr = (tail.text() for tail in tails)
    report.end()
    if code != 0:
        failed = CommandFailed(
            f"{arguments[0]} ended with code {code}\nstdout: {stdout[-SAID:]}\nstderr: {stderr[-SAID:]}"
        )
        keep(failed, said(code, stdout, stderr))
        raise failed
    return {"exitCode": code, "stdout": stdout, "stderr": stderr}


def said(code: int | None, stdout: str, stderr: str) -> bytes:
    """What is kept of a command that failed; no code: it did not end by itself."""
    return encode({"exitCode": code, "stdout": stdout[-SAID_FAILED:], "stderr": stderr[-SAID_FAILED:]})


class Report:
    """Tells what a program has said so far, now and then while it says something."""

    def __init__(self, told: Said | None) -> None:
        self.told = told
        self.changed, self.ended = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def begin(self, tails: Sequence[Tail]) -> None:
        """Until its end."""
        if self.told is not None:
            self.thread = threading.Thread(target=self._run, args=(self.told, tails), daemon=True)
            self.thread.start()

    def end(self) -> None:
        """Nothing more is told."""
        self.ended.set()
        self.changed.set()
        if self.thread is not None:
            self.thread.join()

    def _run(self, told: Said, tails: Sequence[Tail]) -> None:
        while self.changed.wait() and not self.ended.is_set():
            self.changed.clear()
            told(said(None, *[tail.so_far() for tail in tails]))
            self.ended.wait(OFTEN)


class Tail:
    """The end of what is written to a pipe, however much that is."""

    def __init__(self, stream: IO[bytes] | None, changed: threading.Event) -> None:
        assert stream is not None
        self.stream, self.end, self.changed = stream, b"", changed
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def text(self) -> str:
        """When everybody who could write has ended."""
        self.thread.join()
        return self.so_far()

    def so_far(self) -> str:
        """What there is of it."""
        return self.end.decode("utf-8", "replace").replace("\x00", "\\0")

    def _read(self) -> None:
        with self.stream:
            while part := self.stream.read1(65536):  # type: ignore[attr-defined]  # it is buffered
                self.end = (self.end + part)[-TAIL:]
                self.changed.set()


def _feed(stream: IO[bytes], text: bytes) -> None:
    try:
        with stream:
            stream.write(text)
    except BrokenPipeError:
        return  # it did not want to read it


class Command(Declared):
    """The task; a job says its own time limit."""

    @property
    def place(self) -> tuple[str, str]:
        """The same in every app."""
        return __name__, "COMMAND"

    def limit(self, arguments: dict[str, Any]) -> float | None:
        """The shorter of the job's and the task's."""
        own = float(arguments["timeout"])
        return own if self.timeout is None else min(own, self.timeout)


COMMAND = Command(command, name=NAME, process=True)
"""As the process that runs it knows it."""
