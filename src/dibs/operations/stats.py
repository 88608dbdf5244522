"""What jobs came to, by queue and minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dibs.operations.operation import Conversation, Row, Statement, Table, operation
from dibs.operations.rows import moment

COUNTED = ("queue", "successful", "failed", "retried")
MAX_MINUTES = 7 * 24 * 60


@dataclass(frozen=True, slots=True)
class Minute:
    """What the jobs of one queue came to in one minute."""

    at: datetime | None
    queue: str
    successful: int
    failed: int
    retried: int


@operation(repeatable=False)
def add(counted: Sequence[Row]) -> Conversation[None]:
    """So many more in this minute, for each queue."""
    yield Statement("add_stats", counted=Table(COUNTED, sorted(counted)))


@operation(reads=True)
def minutes(count: int) -> Conversation[list[Minute]]:
    """The last so many minutes, this one included, in which something happened; the oldest first."""
    rows = yield Statement("stats", minutes=count)
    return [Minute(moment(row[0]), *row[1:]) for row in rows]
