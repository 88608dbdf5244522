"""`dibs drain`: run what is due, and end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping

import click

from dibs.app import Dibs
from dibs.cli.target import load_with_tasks, queue_names, target_argument
from dibs.worker.drain import Drain
from dibs.worker.report import DrainReport


@click.command()
@target_argument
@click.option("--limit", type=click.IntRange(0), help="Run so many jobs at most.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Run so many at once.")
@click.option("--deadline", type=click.FloatRange(0.001, 86400), help="End before so many seconds have passed.")
@click.option("--queues", help="Only these, in this order, joined by commas.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def drain(
    target: str | None,
    limit: int | None,
    concurrency: int | None,
    deadline: float | None,
    queues: str | None,
    as_json: bool,
) -> None:
    """Run what is due, and end: for cron and serverless functions. Any number may overlap. SIGTERM or Ctrl-C: what runs
    may finish, as with a worker.

    \b
    Example: dibs drain shop.jobs:app --limit 1000 --concurrency 25 --deadline 50
    """
    app = load_with_tasks(target)
    names = queue_names(queues)
    if isinstance(names, Mapping):
        raise click.BadParameter("a drain serves queues in order; weights are for workers.", param_hint="--queues")
    made = app.drainer(limit=limit, concurrency=concurrency, deadline=deadline, queues=names)
    report = asyncio.run(run(app, made))
    click.echo(json.dumps(report.as_dict()) if as_json else str(report))


async def run(app: Dibs, made: Drain) -> DrainReport:
    """To its end, or until told to stop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, made.stop)
    try:
        return await made.run()
    finally:
        await app.aclose()
