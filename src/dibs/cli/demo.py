"""`dibs demo`: a tour. Real worker processes on a SQLite file of their own; one of them is killed before your eyes."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dibs.app import Dibs
from dibs.cli.render import COLOURS
from dibs.cli.tour import declare
from dibs.config import environment_with
from dibs.job import Job, JobState

REFRESH = 0.1
KILL_AT = 0.4  # of the way
LONGEST = 60.0  # seconds; it takes a quarter of that
BAR = 20
WORKERS = ("worker", "dibs.cli.tour:app", "--processes", "2", "--concurrency", "4")


@click.command()
def demo() -> None:
    """A tour: jobs run, one fails and is retried, and a worker is killed with SIGKILL while it runs another.

    Takes a quarter of a minute, needs no configuration, and leaves nothing behind.

    \b
    Example: dibs demo
    """
    with tempfile.TemporaryDirectory(prefix="dibs-demo-") as name:
        folder = Path(name)
        with closing(Dibs(f"sqlite:///{folder}/demo.db")) as app:
            tour = Tour(app, folder)
            try:
                tour.run()
            except KeyboardInterrupt:
                raise click.Abort from None


class Tour:
    """What is shown, and what happens on the way."""

    def __init__(self, app: Dibs, folder: Path) -> None:
        self.app, self.folder, self.console = app, folder, Console(highlight=False)
        self.jobs: list[Job] = []
        self.killed_at = self.taken_over_after = 0.0
        self.killed = 0

    def run(self) -> None:
        """From the first job to the summary."""
        self.console.print("[bold]dibs demo[/]: two worker processes, eight jobs, one SQLite file\n")
        with closing(sqlite3.connect(self.folder / "demo.db")) as connection:
            connection.execute("create table charges (account text, cents integer)")
        resize, mail, charge = declare(self.app)
        self.jobs = [charge.using(priority=9).enqueue(account="ada", cents=500), mail.enqueue(to="ada@example.com")]
        self.jobs += [resize.enqueue(image=n, seconds=2.0 + n / 2) for n in range(1, 7)]
        with self._workers(), Live(console=self.console, auto_refresh=False, transient=False) as live:
            self._watch(live)
        self._summary()

    @contextmanager
    def _workers(self) -> Iterator[None]:
        with (self.folder / "workers.log").open("wb") as log:
            workers = subprocess.Popen(  # noqa: S603  # our own command
                [sys.executable, "-m", "dibs", *WORKERS],
                env=environment_with("DIBS_URL", self.app.url),
                stdin=subprocess.DEVNULL,
                stderr=log,
                process_group=0,  # Ctrl-C is for us
            )
        try:
            yield
        finally:
            workers.terminate()
            workers.wait()

    def _watch(self, live: Live) -> None:
        until = time.monotonic() + LONGEST
        while any(not job.state.final for job in self.jobs):
            if time.monotonic() > until:
                log = (self.folder / "workers.log").read_text()
                raise click.ClickException(f"The jobs did not end within {LONGEST:g} s. The log of the workers:\n{log}")
            before, self.jobs = self.jobs, [job.refresh() for job in self.jobs]
            for was, job in zip(before, self.jobs, strict=True):
                self._tell(was, job)
            self._perhaps_kill(self.jobs[0])
            if self.console.is_terminal:
                live.update(self._table(), refresh=True)
            time.sleep(REFRESH)

    def _perhaps_kill(self, job: Job) -> None:
        """The process that runs it, as the job itself has said."""
        if self.killed or job.state is not JobState.RUNNING or _part(job) < KILL_AT:
            return
        self.killed = int(re.findall(r"\d+", job.progress["message"])[0])
        with suppress(ProcessLookupError):
            os.kill(self.killed, signal.SIGKILL)
        self.killed_at = time.monotonic()
        self.console.print(f"[bold red]kill -9 {self.killed}[/]: the process that runs job {job.id}, charge, is gone")

    def _tell(self, was: Job, job: Job) -> None:
        """In words, what changed."""
        if was.state is not JobState.RETRY and job.state is JobState.RETRY:
            self.console.print(f"job {job.id}, {job.type}: [yellow]RETRY[/] after {job.error}")
        if job.id == self.jobs[0].id and self.killed and not self.taken_over_after and job.attempts == 2:
            self.taken_over_after = time.monotonic() - self.killed_at
            self.console.print(f"job {job.id}, {job.type}: [green]taken over[/] after {self.taken_over_after:.1f} s")
        if not was.state.final and job.state.final:
            self.console.print(f"job {job.id}, {job.type}: [green]{job.state}[/] at attempt {job.attempts}")

    def _table(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("job", "task", "state", "attempt", "", ""):
            table.add_column(head)
        for job in self.jobs:
            state = Text(job.state, style=COLOURS.get(job.state, ""))
            filled = round(BAR * _part(job))
            bar = Text("█" * filled, style="green") + Text("░" * (BAR - filled), style="dim")
            said = job.progress["message"] if job.progress and job.state is JobState.RUNNING else ""
            table.add_row(str(job.id), job.type, state, str(job.attempts or ""), bar, Text(said, style="dim"))
        return table

    def _summary(self) -> None:
        with closing(sqlite3.connect(self.folder / "demo.db")) as connection:
            charges = connection.execute("select count(*), sum(cents) from charges").fetchone()
        retried = [job.id for job in self.jobs[1:] if job.attempts > 1]
        good = sum(job.state is JobState.SUCCESSFUL for job in self.jobs)
        lines = [
            "",
            "[bold]What happened[/]",
            f"  {good} of {len(self.jobs)} jobs are SUCCESSFUL.",
            f"  Job {retried[0]} failed once and was retried." if retried else "",
            f"  Process {self.killed} was killed with SIGKILL at {KILL_AT:.0%} of job {self.jobs[0].id}.",
            f"  {self.taken_over_after:.1f} s later the job ran again, in another process.",
            f"  The account was charged {charges[0]} time, {charges[1]} cents: effects and success commit together.",
            "",
            "Next: README.md, or `dibs --help`.",
        ]
        self.console.print("\n".join(lines))
        if good < len(self.jobs) or charges[0] != 1:
            raise click.ClickException("That was not as promised. Please report it.")


def _part(job: Job) -> float:
    if job.state is JobState.SUCCESSFUL:
        return 1.0
    if not job.progress or job.state is not JobState.RUNNING:
        return 0.0
    return float(job.progress["done"] / job.progress["total"])
