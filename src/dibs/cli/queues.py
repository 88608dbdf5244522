"""`dibs queues` and `dibs workers`: what waits, and who works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from dibs.cli.render import ago, json_option, print_json, table
from dibs.cli.target import load, load_and_rest, only, target_argument
from dibs.operations import queues as operations
from dibs.operations import workers as people


@click.group()
def queues() -> None:
    """Queues: what waits in them; pause and resume them."""


@queues.command(name="list")
@target_argument
@json_option
def list_(target: str | None, as_json: bool) -> None:
    """Count what each queue holds.

    \b
    Example: dibs queues list shop.jobs:app
    """
    app = load(target)
    found = app.queues()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    table(
        ("queue", "waiting", "later", "retry", "running", "processing", "failed", "cancelled", "oldest", ""),
        [
            (
                each.name,
                each.waiting if each.estimate is None else f"~{each.estimate:,}",
                each.later,
                each.retry,
                each.running,
                each.processing,
                each.failed,
                each.cancelled,
                ago(each.oldest),
                "paused" if each.paused else "",
            )
            for each in found
        ],
        empty="no queue has any jobs",
    )
    for each in found:
        if each.problem:
            click.secho(each.problem, fg="yellow", err=True)


@queues.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] QUEUE")
def pause(args: Sequence[str]) -> None:
    """Let nobody claim from a queue any more; what runs goes on.

    \b
    Example: dibs queues pause shop.jobs:app mail
    """
    app, rest = load_and_rest(args)
    queue, known = only(rest, "queue"), app.engine.run(operations.names())
    app.engine.run(operations.pause(queue))
    click.echo(f"paused {queue}")
    if queue not in known and queue not in app.adopted:
        others = f" There is: {', '.join(known)}." if known else ""
        click.echo(f"Nothing waits in a queue of that name.{others}", err=True)


@queues.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] QUEUE")
def resume(args: Sequence[str]) -> None:
    """Claim from a queue again, at once.

    \b
    Example: dibs queues resume shop.jobs:app mail
    """
    app, rest = load_and_rest(args)
    app.engine.run(operations.resume(only(rest, "queue")))
    click.echo(f"resumed {rest[0]}")


@click.command()
@target_argument
@json_option
def workers(target: str | None, as_json: bool) -> None:
    """List the workers: who they are, since when, and when they last beat.

    \b
    Example: dibs workers shop.jobs:app
    """
    rows = load(target).engine.run(people.list_workers())
    found = list({each.name: each for each in rows}.values())  # a worker has a row for each of its lanes
    if as_json:
        print_json([asdict(each) for each in found])
        return
    table(
        ("worker", "started", "last beat", "lease", ""),
        [
            (each.name, ago(each.started_at), ago(each.beat_at), f"{each.lease:g} s", "" if each.alive else "silent")
            for each in found
        ],
        empty="no worker is running",
    )
