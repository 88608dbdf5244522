"""`dibs worker`: a supervisor and its worker processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from dibs.app import Dibs
from dibs.cli.logs import log_options, set_up
from dibs.cli.target import load_with_tasks, queue_names, target_argument
from dibs.job import WorkerId
from dibs.operations import workers
from dibs.worker.supervisor import Lifeline, Supervisor
from dibs.worker.worker import Worker

log = logging.getLogger("dibs")

ORPHANED = 1.0  # seconds that running jobs have to finish when the supervisor is gone: its killer will come for us too


@click.command()
@target_argument
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Jobs that each process runs at once.")
@click.option("--processes", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Worker processes.")
@click.option("--queues", help="Only these, joined by commas: in strict order, or by weight as in mail=3,media=1.")
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a process after so many jobs.")
@click.option(
    "--max-memory", type=click.IntRange(1), metavar="MB", help="Replace any process that has grown over this."
)
@log_options
def worker(
    target: str | None,
    concurrency: int | None,
    processes: int,
    queues: str | None,
    max_jobs: int | None,
    max_memory: int | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run jobs until told to stop. SIGTERM or Ctrl-C: what runs may finish, what has not begun goes back at once.

    \b
    Example: dibs worker shop.jobs:app --concurrency 20 --processes 2
             dibs worker shop.jobs:app --queues mail=3,media=1
    """
    lines = set_up(log_format, log_level)
    lifeline = Lifeline.found()
    app = load_with_tasks(target)
    names = queue_names(queues)
    if lifeline is not None:
        made = app.worker(concurrency=concurrency, queues=names, max_jobs=max_jobs, max_memory=max_memory)
        made.log = lines
        run_child(app, made, lifeline)
        return
    app.worker(concurrency=concurrency, queues=names)  # what is wrong with the options is said here, once
    command = [sys.executable, "-m", "dibs", *sys.argv[1:]]
    sys.exit(Supervisor(command, processes, lambda rows: _freed(app, rows)).run())


def run_child(app: Dibs, made: Worker, lifeline: Lifeline) -> None:
    """Work until told to stop, or until the supervisor is gone."""

    async def work() -> None:
        loop = asyncio.get_running_loop()

        def told() -> None:
            """Politely, however often: that it is to be now, the supervisor says otherwise."""
            if not made.stopped.is_set():
                made.stop()

        def hurried() -> None:
            told()
            if lifeline.gone():
                loop.remove_reader(lifeline.life)
                log.error("The supervisor is gone: what does not end within %g s goes back to run elsewhere", ORPHANED)
                loop.call_later(ORPHANED, made.stop)
            else:
                made.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
        loop.add_reader(lifeline.life, hurried)
        made.enlisted = lifeline.enlisted
        try:
            await made.run()
        finally:
            await app.aclose()

    factory = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(work())
        except (SystemExit, KeyboardInterrupt) as error:
            # Of a callback, and nobody knows of which job. To hand back what runs would charge nobody, over and over.
            log.critical("A callback has ended this process, which counts as a crash: %r", error, exc_info=error)
            _leave_now(1)
    _leave_now(0)


def _leave_now(code: int) -> None:
    """A job's thread that does not end must not keep the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _freed(app: Dibs, rows: Sequence[WorkerId]) -> int:
    return len(app.engine.run(workers.recover(known=rows)).jobs)
