"""Queues: which there are, pausing them, counting them."""

from __future__ import annotations

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
