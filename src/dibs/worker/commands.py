"""Programs as jobs: a list of arguments, never a text for a shell, in a process of its own, killed with all it started.

Off unless the app turns it on (`app.commands()`): whoever can add jobs can then run programs.
"""

from __future__ import annotations

import subprocess
import threading
from typing import IO, Annotated, Any

from msgspec import Meta

from dibs.config import environment_of_command
from dibs.retry import Permanent
from dibs.task import Declared

NAME = "dibs.command"
TAIL = 16 * 1024  # bytes that are kept of the end of each output
SAID = 600  # characters of each output in the error of one that failed
LONGEST = 86400.0


class CommandFailed(Exception):
    """A program ended with another code than 0."""


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
    tails = [Tail(stream) for stream in (process.stdout, process.stderr)]
    feeder = threading.Thread(target=_feed, args=(process.stdin, stdin.encode()), daemon=True)
    feeder.start()
    code = process.wait()
    stdout, stderr = (tail.text() for tail in tails)
    if code != 0:
        raise CommandFailed(
            f"{arguments[0]} ended with code {code}\nstdout: {stdout[-SAID:]}\nstderr: {stderr[-SAID:]}"
        )
    return {"exitCode": code, "stdout": stdout, "stderr": stderr}


class Tail:
    """The end of what is written to a pipe, however much that is."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self.stream, self.end = stream, b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def text(self) -> str:
        """When everybody who could write has ended."""
        self.thread.join()
        return self.end.decode("utf-8", "replace").replace("\x00", "\\0")

    def _read(self) -> None:
        with self.stream:
            while part := self.stream.read1(65536):  # type: ignore[attr-defined]  # it is buffered
                self.end = (self.end + part)[-TAIL:]


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
