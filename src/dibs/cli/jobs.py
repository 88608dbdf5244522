"""`dibs jobs`: list, show, cancel, retry; one by one, or all that match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from dibs.app import Dibs
from dibs.cli.render import ago, as_text, confirmed, counted, job_as_dict, json_option, print_json, table
from dibs.cli.target import load, load_and_rest, target_argument
from dibs.errors import JobNotFound, NotRetryable, UniqueKeyHeld
from dibs.job import JobState
from dibs.operations import jobs as operations
from dibs.operations.jobs import MAX_PAGE, Bulk, Filter
from dibs.operations.operation import Operation

F = TypeVar("F", bound=Callable[..., Any])

COUNTED = 1_000_000  # of a state: more are "over" that
FINAL_ALREADY = ": no such job, or it is final already"
KEY_HELD = ": another job holds the unique key"
LONGEST = 60


@click.group()
def jobs() -> None:
    """Jobs: list them, look at one, cancel or retry them."""


def filters(command: F) -> F:
    """Which jobs."""
    for option in (
        click.option("--tag", help="Only those with this tag."),
        click.option("--queue", help="Only of this queue."),
        click.option("--type", "type_", metavar="TASK", help="Only of this task."),
        click.option("--state", type=click.Choice(list(JobState), case_sensitive=False), help="Only in this state."),
    ):
        command = option(command)
    return command


@jobs.command(name="list")
@target_argument
@filters
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True, help="So many at most.")
@click.option("--cursor", type=click.IntRange(0), help="Go on where the last page ended.")
@json_option
def list_(
    target: str | None,
    state: str | None,
    type_: str | None,
    queue: str | None,
    tag: str | None,
    limit: int,
    cursor: int | None,
    as_json: bool,
) -> None:
    """List jobs, newest first.

    \b
    Example: dibs jobs list shop.jobs:app --state FAILED --queue mail
    """
    app = load(target)
    page = app.engine.run(operations.page(_filter(state, type_, queue, tag), limit=limit, before=cursor))
    if as_json:
        print_json({"jobs": [job_as_dict(job, app.settings.masked) for job in page.jobs], "cursor": page.cursor})
        return
    table(
        ("id", "state", "task", "queue", "attempts", "added", "error"),
        [
            (str(j.id), j.state, j.type, j.queue, f"{j.attempts}/{j.max_attempts}", ago(j.created_at), _short(j.error))
            for j in page.jobs
        ],
        empty="no such job",
    )
    if page.cursor is not None:
        click.echo(f"more: --cursor {page.cursor}")


@jobs.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] ID")
@json_option
def show(args: Sequence[str], as_json: bool) -> None:
    """Show all there is about one job.

    \b
    Example: dibs jobs show shop.jobs:app 42
    """
    app, rest = load_and_rest(args)
    (job_id,) = _ids(rest, most=1)
    job = app.get(job_id)
    shown = job_as_dict(job, app.settings.masked)
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        if name != "failures" and value not in (None, ()):
            click.echo(f"{name:<13} {as_text(value)}")
    for failure in job.failures:
        _show_failure(failure)


def _show_failure(failure: dict[str, Any]) -> None:
    seconds = failure.get("seconds")
    took = "" if seconds is None else f" after {seconds:.1f} s"
    times = [_moment(failure[name]) for name in ("started_at", "finished_at") if failure.get(name) is not None]
    when = f" ({' to '.join(times)})" if times else ""
    click.secho(f"\nattempt {failure.get('attempt')} on {failure.get('worker')}{took}{when}:", fg="red")
    click.echo((failure.get("traceback") or failure.get("error") or "").rstrip())
    for name in ("exitCode", "stdout", "stderr"):  # of a command
        if failure.get(name) not in (None, ""):
            click.echo(f"{name}: {str(failure[name]).rstrip()}")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "milliseconds")


@jobs.command()
@click.argument("args", nargs=-1, metavar="[APP|URL] [ID ...]")
@filters
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def cancel(args: Sequence[str], yes: bool, as_json: bool, **wanted: str | None) -> None:
    """Cancel jobs that are not final: those named, or all that match.

    \b
    Example: dibs jobs cancel shop.jobs:app 42 43
             dibs jobs cancel shop.jobs:app --queue mail --yes
    """
    app, rest = load_and_rest(args)
    if rest:
        ids = _ids(rest)
        done = app.engine.run(operations.cancel(ids))
        _told("cancelled", done, len(ids) - done, FINAL_ALREADY, as_json)
        for job_id in ids if done < len(ids) else []:
            app.get(job_id)  # says so where there is none
        return
    wish = _some(wanted)
    found = [state for state in JobState if not state.final and wish.state in (None, state)]
    _in_bulk(app, wish, "cancel", "cancelled", found, operations.cancel_matching, FINAL_ALREADY, yes, as_json)


@jobs.command()
@click.argument("args", nargs=-1, metavar="[APP|URL] [ID ...]")
@filters
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def retry(args: Sequence[str], yes: bool, as_json: bool, **wanted: str | None) -> None:
    """Let FAILED and CANCELLED jobs run again: those named, or all that match.

    \b
    Example: dibs jobs retry shop.jobs:app 42
             dibs jobs retry shop.jobs:app --state FAILED --type shop.jobs.mail
    """
    app, rest = load_and_rest(args)
    if rest:
        refused = [job_id for job_id in _ids(rest) if not _retried(app, job_id)]
        _told("retried", len(rest) - len(refused), len(refused), "", as_json)
        click.get_current_context().exit(1 if refused else 0)
    wish = _some(wanted)
    found = [state for state in (JobState.FAILED, JobState.CANCELLED) if wish.state in (None, state)]
    _in_bulk(app, wish, "retry", "retried", found, operations.retry_matching, KEY_HELD, yes, as_json)


def _retried(app: Dibs, job_id: int) -> bool:
    """Whether it was; what is wrong with one job keeps no other."""
    try:
        app.retry(job_id)
    except (JobNotFound, NotRetryable, UniqueKeyHeld) as error:
        click.echo(f"Error: {error}", err=True)
        return False
    return True


def _in_bulk(
    app: Dibs,
    wanted: Filter,
    verb: str,
    done: str,
    states: Sequence[JobState],
    step: Callable[..., Operation[Bulk]],
    why: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Count, ask, and do it step by step."""
    counts = [app.engine.run(operations.count(replace(wanted, state=state), COUNTED + 1)) for state in states]
    count, more = sum(min(each, COUNTED) for each in counts), max(counts, default=0) > COUNTED
    confirmed(f"{verb} {'over ' if more else ''}{counted(count)}?", yes=yes, as_json=as_json)
    changed = refused = 0
    with click.progressbar(length=count, label=verb, hidden=as_json or more) as bar:
        for bulk in _steps(app, wanted, step):
            changed, refused = changed + bulk.done, refused + bulk.refused
            bar.update(bulk.done + bulk.refused)
    _told(done, changed, refused, why, as_json)


def _steps(app: Dibs, wanted: Filter, step: Callable[..., Operation[Bulk]]) -> Iterator[Bulk]:
    after: int | None = 0
    while after is not None:
        bulk = app.engine.run(step(wanted, after=after))
        yield bulk
        after = bulk.cursor


def _told(done: str, changed: int, refused: int, why: str, as_json: bool) -> None:
    if as_json:
        print_json({done: changed, "refused": refused})
        return
    others = f"; {refused:,} could not be{why}" if refused else ""
    click.echo(f"{done} {counted(changed)}{others}")


def _some(wanted: dict[str, str | None]) -> Filter:
    if not any(wanted.values()):
        raise click.UsageError("Which jobs? Name their ids, or say --state, --type, --queue or --tag.")
    return _filter(wanted["state"], wanted["type_"], wanted["queue"], wanted["tag"])


def _filter(state: str | None, type_: str | None, queue: str | None, tag: str | None) -> Filter:
    return Filter(None if state is None else JobState(state), type_, queue, tag)


def _ids(texts: Sequence[str], most: int | None = None) -> list[int]:
    if not texts or (most is not None and len(texts) > most):
        raise click.UsageError("Which job? Name one id." if most else "Which jobs? Name their ids.")
    if wrong := [text for text in texts if not text.isdecimal()]:
        raise click.UsageError(f"{wrong[0]!r} is not the id of a job.")
    return [int(text) for text in texts]


def _short(text: str | None) -> str:
    line = (text or "").partition("\n")[0]
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
