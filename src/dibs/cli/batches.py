"""`dibs batches`: list them, look at one, watch it to its end, cancel, retry or close it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from dibs.app import Dibs
from dibs.batch import BatchProgress, BatchState
from dibs.batches import Batch
from dibs.cli.render import ago, as_text, confirmed, counted, json_option, print_json, table
from dibs.cli.target import load, load_and_rest, target_argument
from dibs.operations import batches as operations
from dibs.operations.jobs import MAX_PAGE

EVERY = 0.25  # seconds between looks
COUNTS = ("successful", "failed", "cancelled", "unfinished")


@click.group()
def batches() -> None:
    """Batches: list them, watch one, cancel it, retry what failed in it, close it."""


@batches.command(name="list")
@target_argument
@click.option("--unfinished", is_flag=True, help="Only those that are not finished.")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True, help="So many at most.")
@click.option("--cursor", type=click.IntRange(0), help="Go on where the last page ended.")
@json_option
def list_(target: str | None, unfinished: bool, limit: int, cursor: int | None, as_json: bool) -> None:
    """List batches, newest first.

    \b
    Example: dibs batches list shop.jobs:app --unfinished
    """
    page = load(target).engine.run(operations.page(limit=limit, before=cursor, unfinished=unfinished))
    if as_json:
        print_json({"batches": [_as_dict(each) for each in page.batches], "cursor": page.cursor})
        return
    table(
        ("id", "name", "state", "jobs", *COUNTS, "begun"),
        [
            (str(each.id), each.name, each.state, each.total, *_counts(each), ago(each.created_at))
            for each in page.batches
        ],
        empty="no such batch",
    )
    if page.cursor is not None:
        click.echo(f"more: --cursor {page.cursor}")


@batches.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] ID")
@json_option
def show(args: Sequence[str], as_json: bool) -> None:
    """Show how far one batch is.

    \b
    Example: dibs batches show shop.jobs:app 7
    """
    shown = _as_dict(_batch(args).progress())
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        if value is not None:
            click.echo(f"{name:<13} {as_text(value)}")


@batches.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] ID")
@json_option
def watch(args: Sequence[str], as_json: bool) -> None:
    """Watch a batch until it is finished; exits 1 when not all of its jobs were SUCCESSFUL.

    \b
    Example: dibs batches watch shop.jobs:app 7
    """
    batch = _batch(args)
    last = _print_changes(batch) if as_json else _draw(batch)
    if last.successful < last.total:
        raise click.exceptions.Exit(1)


def _print_changes(batch: Batch) -> BatchProgress:
    told: dict[str, Any] | None = None
    for progress in _looks(batch):
        shown = _as_dict(progress)
        if shown != told:
            told = shown
            print_json(shown)
    return progress


def _draw(batch: Batch) -> BatchProgress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}", markup=False),
    )
    with Progress(*columns) as bar:
        task = bar.add_task(batch.name or f"batch {batch.id}", said="", total=None)
        for progress in _looks(batch):
            done = progress.total - progress.unfinished
            bar.update(task, total=progress.total, completed=done, said=_said(progress))
    return progress


def _said(progress: BatchProgress) -> str:
    bad = [f"{count:,} {name}" for name in ("failed", "cancelled") if (count := getattr(progress, name))]
    return ", ".join([*bad, *(["still open"] if progress.state is BatchState.OPEN else [])])


def _looks(batch: Batch) -> Iterator[BatchProgress]:
    """At once, and then every now and then, until it is finished."""
    while (progress := batch.progress()).state is not BatchState.FINISHED:
        yield progress
        time.sleep(EVERY)
    yield progress


@batches.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def cancel(args: Sequence[str], yes: bool, as_json: bool) -> None:
    """Close a batch and cancel what is left of it.

    \b
    Example: dibs batches cancel shop.jobs:app 7
    """
    batch = _batch(args)
    confirmed(f"cancel {counted(batch.progress().unfinished)}?", yes=yes, as_json=as_json)
    _told("cancelled", batch.cancel, as_json)


@batches.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] ID")
@json_option
def retry(args: Sequence[str], as_json: bool) -> None:
    """Let the FAILED jobs of a batch run again. A batch that has finished stays so: its hooks fire once.

    \b
    Example: dibs batches retry shop.jobs:app 7
    """
    _told("retried", _batch(args).retry, as_json)


@batches.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] ID")
@json_option
def close(args: Sequence[str], as_json: bool) -> None:
    """Close a batch whose program ended before it could: with nothing left, it finishes.

    \b
    Example: dibs batches close shop.jobs:app 7
    """
    batch = _batch(args)
    batch.close()
    state = batch.progress().state
    if as_json:
        print_json({"id": batch.id, "state": state})
    else:
        click.echo(f"batch {batch.id} is {state}")


def _told(done: str, act: Callable[[], int], as_json: bool) -> None:
    number = act()
    if as_json:
        print_json({done: number})
    else:
        click.echo(f"{done} {counted(number)}")


def _batch(args: Sequence[str]) -> Batch:
    app: Dibs
    app, rest = load_and_rest(args)
    if len(rest) != 1:
        raise click.UsageError("Which batch? Name one id.")
    if not rest[0].isdecimal():
        raise click.UsageError(f"{rest[0]!r} is not the id of a batch.")
    return app.get_batch(int(rest[0]))


def _counts(progress: BatchProgress) -> tuple[int, ...]:
    return tuple(getattr(progress, name) for name in COUNTS)


def _as_dict(progress: BatchProgress) -> dict[str, Any]:
    shown = asdict(progress)
    first = {name: shown.pop(name) for name in ("id", "name")}
    return {**first, "state": progress.state, "unfinished": progress.unfinished, **shown}
