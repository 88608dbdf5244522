"""`dibs queues` and `dibs workers`: what waits, and who works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import click

from dibs.cli.render import ago, json_option, print_json, table
from dibs.cli.target import load, load_and_rest, only, target_argument
from dibs.operations import queues as operations
from dibs.operations import workers as people
from dibs.operations.operation import Operation


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
@json_option
def pause(args: Sequence[str], as_json: bool) -> None:
    """Let nobody claim from a queue any more; what runs goes on.

    \b
    Example: dibs queues pause shop.jobs:app mail
    """
    _set(args, operations.pause, paused=True, as_json=as_json)


@queues.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] QUEUE")
@json_option
def resume(args: Sequence[str], as_json: bool) -> None:
    """Claim from a queue again, at once.

    \b
    Example: dibs queues resume shop.jobs:app mail
    """
    _set(args, operations.resume, paused=False, as_json=as_json)


def _set(args: Sequence[str], change: Callable[[str], Operation[None]], *, paused: bool, as_json: bool) -> None:
    app, rest = load_and_rest(args, names=1)
    queue, known = only(rest, "queue"), app.engine.run(operations.names())
    app.engine.run(change(queue))
    if as_json:
        print_json({"queue": queue, "paused": paused})
    else:
        click.echo(f"{'paused' if paused else 'resumed'} {queue}")
    if queue not in known and queue not in app.adopted:
        others = f" There is: {', '.join(known)}." if known else ""
        click.echo(f"Nothing waits in a queue of that name.{others}", err=True)


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
