"""`dibs dev`: a worker that starts anew whenever a file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from dibs.cli.target import target_argument

LOOK = 0.3  # seconds
GRACE = 2.0  # for jobs that run when a file changes; then they are stopped, and handed back
SKIPPED = {"node_modules", "venv", "env", "build", "dist", "__pycache__"}
PASSED_ON = ("concurrency", "queues")

Seen = dict[str, tuple[int, int]]


@click.command()
@target_argument
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Jobs that it runs at once.")
@click.option("--queues", help="Only these, joined by commas, as in dibs worker.")
@click.option(
    "--watch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Another directory than the current one. May be said several times.",
)
def dev(target: str | None, watch: tuple[Path, ...], **options: object) -> None:
    """A worker that starts anew whenever a Python file changes. For your own machine: jobs that run then are stopped.

    \b
    Example: dibs dev shop.jobs:app
    """
    command = [sys.executable, "-m", "dibs", "worker", *([target] if target else [])]
    for name in PASSED_ON:
        if options[name] is not None:
            command += [f"--{name}", str(options[name])]
    with suppress(KeyboardInterrupt):
        Reloader(command, watch or (Path(),)).run()


class Reloader:
    """Keeps one worker on the code as it is now."""

    def __init__(self, command: list[str], folders: tuple[Path, ...]) -> None:
        self.command, self.folders = command, folders
        self.seen = files(folders)
        self.worker: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until Ctrl-C or SIGTERM."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while True:
                self.worker = subprocess.Popen(self.command, process_group=0)  # noqa: S603  # our own command
                changed = self._wait()
                click.secho(f"Changed: {changed}. Starting anew.", fg="cyan", err=True)
                self._stop()
        finally:
            self._stop()

    def _wait(self) -> str:
        """The file that changed. A worker that ended by itself, on a mistake in the code, waits for its correction."""
        said = False
        while True:
            time.sleep(LOOK)
            before, self.seen = self.seen, files(self.folders)
            for name in self.seen.keys() | before.keys():
                if self.seen.get(name) != before.get(name):
                    return os.path.relpath(name)
            if not said and self.worker is not None and self.worker.poll() is not None:
                click.secho("The worker has ended. It starts anew when a file changes.", fg="yellow", err=True)
                said = True

    def _stop(self) -> None:
        worker, self.worker = self.worker, None
        while worker is not None and worker.poll() is None:
            worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                worker.wait(GRACE)


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
