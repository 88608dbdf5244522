"""Answers: a figure beside what it has to be, as a table for people, as JSON, and as a page of results."""

import json
import os
import platform
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results")
WIDTH = 160  # lines stay whole in a file or a pipe
HEADS = ("", "measured", "required", "", "rounds", "ours", "floor")


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure has to be."""

    limit: float
    at_most: bool = False

    def holds(self, value: float) -> bool:
        """Whether a figure is as it has to be."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One answer. `rounds` are the figures that `value` is the median of; `ours` and `floor` are absolute."""

    what: str
    rounds: tuple[float, ...]
    bound: Bound | None = None
    unit: str = ""
    ours: str = ""
    floor: str = ""

    @property
    def value(self) -> float:
        """The median of the rounds."""
        return median(self.rounds)

    @property
    def holds(self) -> bool | None:
        """Whether it is as required; None where nothing is."""
        return None if self.bound is None else self.bound.holds(self.value)

    @property
    def mark(self) -> str:
        """For people."""
        return {None: "", True: "ok", False: "MISSED"}[self.holds]

    def cells(self) -> tuple[str, ...]:
        """One line of a table."""
        required = "" if self.bound is None else f"{self.bound}{self.unit}"
        spread = " ".join(number(value) for value in self.rounds) if len(self.rounds) > 1 else ""
        return (self.what, f"{number(self.value)}{self.unit}", required, self.mark, spread, self.ours, self.floor)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        known = {**asdict(self), "value": self.value, "holds": self.holds}
        return {**known, "rounds": [_finite(value) for value in self.rounds], "value": _finite(self.value)}


@dataclass(frozen=True, slots=True)
class Answer:
    """All figures of one question."""

    name: str
    question: str
    mode: str
    seconds: float
    figures: Sequence[Figure]

    def print(self) -> None:
        """As a table on stdout."""
        table = Table(*HEADS, title=self.question, title_justify="left", box=None, pad_edge=False)
        for figure in self.figures:
            table.add_row(*figure.cells(), style="red" if figure.holds is False else None)
        console = Console()
        console.width = max(console.width, WIDTH)
        console.print(table, "")

    def record(self) -> Path:
        """Write a page of results; the page before it is in the history of the repository."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.md"
        path.write_text("\n".join(self._page()) + "\n")
        return path

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "figures": [figure.as_json() for figure in self.figures]}

    def _page(self) -> Iterable[str]:
        yield f"# {self.name}\n\n{self.question}\n"
        yield f"{datetime.now(UTC):%Y-%m-%d}, {self.mode}, {self.seconds:.0f} s, {machine()}\n"
        yield "| " + " | ".join(HEADS) + " |"
        yield "|---" * len(HEADS) + "|"
        for figure in self.figures:
            yield "| " + " | ".join(figure.cells()) + " |"


def machine() -> str:
    """What it ran on."""
    driver = f"psycopg {psycopg.__version__}, SQLite {sqlite3.sqlite_version}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {driver}"


def number(value: float) -> str:
    """Three digits that matter.

    >>> number(0.914), number(17.25), number(1234.5)
    ('0.91', '17.2', '1,234')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rate(jobs_per_second: float) -> str:
    """For people."""
    return f"{jobs_per_second:,.0f}/s"


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if isfinite(value) else None


def dump(answers: Sequence[Answer]) -> str:
    """All answers as JSON."""
    return json.dumps([answer.as_json() for answer in answers], indent=2)
