"""Queues: which there are, pausing them, counting them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dibs.errors import DibsError
from dibs.job import checked_name
from dibs.operations.operation import Conversation, Statement, operation
from dibs.operations.rows import QueueCounts, counts_from_row

EXACT = 10_000  # jobs of a queue that are counted one by one


@operation(reads=True)
def names() -> Conversation[list[str]]:
    """Every queue that has a job waiting or was ever paused."""
    rows = yield Statement("queue_names")
    return [row[0] for row in rows]


@operation()
def pause(queue: str) -> Conversation[None]:
    """Nobody claims from it any more; what runs goes on."""
    yield Statement("pause", queue=checked_name("queue", queue))


@operation()
def resume(queue: str) -> Conversation[None]:
    """Claim from it again, at once."""
    yield Statement("resume", queue=checked_name("queue", queue))


@operation(reads=True)
def counts(schema: str) -> Conversation[list[QueueCounts]]:
    """What each queue holds, without a look at history."""
    rows = yield Statement("queue_counts", exact=EXACT, schema=schema)
    return [counts_from_row(row) for row in rows]


def with_rows(found: list[QueueCounts], waiting: Mapping[str, int | DibsError]) -> list[QueueCounts]:
    """The same with the rows of adopted tables that wait and have no job yet, so many of each, or why nobody knows."""
    known = {each.name: each for each in found}
    for name, rows in waiting.items():
        counts = known.get(name) or QueueCounts(name, False, 0, 0, 0, 0, 0, 0, None)
        if isinstance(rows, DibsError):
            known[name] = replace(counts, problem=str(rows))
            continue
        more = None if rows < EXACT else counts.waiting + rows
        known[name] = replace(counts, waiting=counts.waiting + rows, estimate=more)
    return sorted(known.values(), key=lambda each: each.name)
