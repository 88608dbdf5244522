"""Tables that people like to read, and JSON for machines. `rich` is loaded only when a table is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from dibs.job import Job, JobState
from dibs.masking import masked

F = TypeVar("F", bound=Callable[..., Any])

COLOURS = {
    JobState.PENDING: "cyan",
    JobState.RETRY: "yellow",
    JobState.RUNNING: "blue",
    JobState.SUCCESSFUL: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "magenta",
}
NOT_SHOWN = {"app", "created"}


def json_option(command: F) -> F:
    """For machines."""
    return click.option("--json", "as_json", is_flag=True, help="For machines.")(command)


def confirmed(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask, unless told not to; where nobody can be asked, nothing is done."""
    if yes:
        return
    if as_json and not sys.stdin.isatty():
        raise click.UsageError(f"{question[:1].upper()}{question[1:]} Nobody is here to be asked: say --yes.")
    click.confirm(question, abort=True, err=as_json)


def print_json(value: Any) -> None:
    """One document; times in ISO form."""
    click.echo(json.dumps(value, default=_plain, ensure_ascii=False))


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """A table; numbers to the right."""
    listed = [[_shown(cell) for cell in row] for row in rows]
    if not listed:
        click.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        right = all(row[number].replace(",", "").isdigit() for row in listed)
        grid.add_column(head, justify="right" if right else "left", overflow="fold")
    for row in listed:
        grid.add_row(*[_coloured(cell) for cell in row])
    Console(highlight=False).print(grid)


def job_as_dict(job: Job, mask: Collection[str]) -> dict[str, Any]:
    """All that a job shows, by name; what nobody may see is hidden."""
    shown = {each.name: getattr(job, each.name) for each in fields(job) if each.name not in NOT_SHOWN}
    return {**shown, **{name: masked(shown[name], mask) for name in ("payload", "result", "progress", "usage")}}


def as_text(value: Any) -> str:
    """A value as JSON has it, where it is more than a word, a number or a time.

    >>> as_text({"n": [1, None]}), as_text("mail"), as_text(("a", "b"))
    ('{"n": [1, null]}', 'mail', 'a, b')
    """
    if isinstance(value, tuple):
        return ", ".join(value)
    return json.dumps(value, default=_plain, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def counted(count: int) -> str:
    """So many jobs.

    >>> counted(1), counted(12_000)
    ('1 job', '12,000 jobs')
    """
    return f"{count:,} job" + ("" if count == 1 else "s")


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """How long since, or until, in one unit.

    >>> ago(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 5, tzinfo=UTC))
    '5 min ago'
    """
    if moment is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    units = ((86400, "d"), (3600, "h"), (60, "min"), (0, "s"))
    size, unit = next(each for each in units if abs(seconds) >= each[0])
    number = abs(seconds) / (size or 1)
    return f"{number:.0f} {unit} ago" if seconds >= 0 else f"in {number:.0f} {unit}"


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}" if cell >= 10_000 else str(cell)
    return str(cell)


def _coloured(cell: str) -> Any:
    from rich.text import Text

    colour = COLOURS.get(cell) if cell in COLOURS else None  # type: ignore[call-overload]  # a StrEnum is its text
    return Text(cell, style=colour or "")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
