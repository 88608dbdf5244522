"""`dibs dev`: a worker and a server that start anew whenever a file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click

from dibs.cli.target import target_argument

LOOK = 0.3  # seconds
GRACE = 2.0  # for jobs that run when a file changes; then they are stopped, and handed back
SKIPPED = {"node_modules", "venv", "env", "build", "dist", "__pycache__"}
PASSED_ON = ("concurrency", "queues")
NAMES = {"worker": "worker", "serve": "server"}

Seen = dict[str, tuple[int, int]]


@click.command()
@target_argument
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Jobs that it runs at once.")
@click.option("--queues", help="Only these, joined by commas, as in dibs worker.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Of the server.")
@click.option("--no-server", is_flag=True, help="Only the worker.")
@click.option(
    "--watch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Another directory than the current one. May be said several times.",
)
def dev(target: str | None, port: int, no_server: bool, watch: tuple[Path, ...], **options: object) -> None:
    """A worker and a server that start anew whenever a Python file changes. For your own machine: what runs is stopped.

    \b
    Example: dibs dev shop.jobs:app
    """
    named = [target] if target else []
    worker = [sys.executable, "-m", "dibs", "worker", *named]
    for name in PASSED_ON:
        if options[name] is not None:
            worker += [f"--{name}", str(options[name])]
    commands = [worker]
    if not no_server and find_spec("uvicorn") and find_spec("starlette") and find_spec("websockets"):
        commands.append([sys.executable, "-m", "dibs", "serve", *named, "--port", str(port)])
    Reloader(commands, watch or (Path(),)).run()


class Reloader:
    """Keeps processes on the code as it is now."""

    def __init__(self, commands: list[list[str]], folders: tuple[Path, ...]) -> None:
        self.commands, self.folders = commands, folders
        self.seen = files(folders)
        self.started: list[subprocess.Popen[bytes]] = []
        self.over = False

    def run(self) -> None:
        """Until Ctrl-C or SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)
        try:
            while not self.over:
                for command in self.commands:
                    self.started.append(subprocess.Popen(command, process_group=0))  # noqa: S603  # our own
                if changed := self._wait():
                    click.secho(f"Changed: {changed}. Starting anew.", fg="cyan", err=True)
                    self._stop()
        finally:
            self._stop()

    def _note(self, number: int, frame: object) -> None:
        """Told to stop: no exception, which would lose a process that is just being started."""
        self.over = True

    def _wait(self) -> str | None:
        """The file that changed. What ended by itself, on a mistake in the code, waits for its correction."""
        ended: set[int] = set()
        while not self.over:
            time.sleep(LOOK)
            before, self.seen = self.seen, files(self.folders)
            for name in self.seen.keys() | before.keys():
                if self.seen.get(name) != before.get(name):
                    return os.path.relpath(name)
            for process in self.started:
                if process.pid not in ended and process.poll() is not None:
                    name = self.commands[self.started.index(process)][3]
                    click.secho(
                        f"The {NAMES[name]} has ended. It starts anew when a file changes.", fg="yellow", err=True
                    )
                    ended.add(process.pid)
        return None

    def _stop(self) -> None:
        started, self.started = self.started, []
        while running := [process for process in started if process.poll() is None]:
            for process in running:
                process.terminate()
            with suppress(subprocess.TimeoutExpired):
                running[0].wait(GRACE)


def files(folders: tuple[Path, ...]) -> Seen:
    """Every Python file, when it was changed, and its size."""
    found: Seen = {}
    for path in (path for folder in folders for path in _python_files(str(folder))):
        with suppress(OSError):  # gone meanwhile
            status = os.stat(path)
            found[path] = status.st_mtime_ns, status.st_size
    return found


def _python_files(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        yield from (os.path.join(place, name) for name in names if name.endswith(".py"))
