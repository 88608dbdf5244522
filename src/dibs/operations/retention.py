"""Retention: what is past its time goes, in small steps that nobody has to wait for."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.operations.operation import Conversation, Statement, operation
from dibs.operations.stats import MAX_MINUTES

AHEAD = 10  # days of partitions made ahead
STEP = 1_000  # rows that one statement deletes
DEAD_DAYS = 90
NAME_DAYS = 400
BATCH_DAYS = 30


@operation()
def partitions(days: int = AHEAD) -> Conversation[bool]:
    """Make partitions ahead and drop past ones; False when a lock was in the way and it has to be tried again."""
    for day in range(days + 1):
        rows = yield Statement("make_partition", day=day)
        if rows[0][0] == "busy":
            return False
    while True:
        rows = yield Statement("drop_partition")
        if rows[0][0] != "dropped":
            return bool(rows[0][0] == "none")


@operation(reads=True)
def expired_history() -> Conversation[list[int]]:
    """Some finished jobs past their retention."""
    rows = yield Statement("expired_history", limit=STEP)
    return [row[0] for row in rows]


@operation()
def forget_history(ids: Sequence[int]) -> Conversation[int]:
    """Delete them."""
    rows = yield Statement("forget_history", ids=list(ids))
    return len(rows)


@operation(reads=True)
def expired_dead(days: int = DEAD_DAYS) -> Conversation[list[int]]:
    """Some failed or cancelled jobs past their retention."""
    rows = yield Statement("expired_dead", days=days, limit=STEP)
    return [row[0] for row in rows]


@operation()
def forget_dead(ids: Sequence[int]) -> Conversation[int]:
    """Delete them."""
    rows = yield Statement("forget_dead", ids=list(ids))
    return len(rows)


@operation()
def lapsed() -> Conversation[int]:
    """Drop unique keys past their period, the names of workers long gone, old statistics."""
    rows = yield Statement("prune_keys", limit=STEP)
    yield Statement("prune_names", days=NAME_DAYS)
    yield Statement("prune_stats", minutes=MAX_MINUTES)
    return len(rows)


@operation()
def old_ones() -> Conversation[bool]:
    """Drop the keys of requests that are a day old, and submissions past their time; whether there may be more."""
    requests = yield Statement("prune_requests", limit=STEP)
    submissions = yield Statement("prune_submissions", limit=STEP)
    return STEP in (requests[0][0], submissions[0][0])


@operation()
def old_batches(days: int = BATCH_DAYS) -> Conversation[bool]:
    """Drop batches that finished so long ago, their parts first; whether there may be more."""
    rows = yield Statement("prune_parts", days=days, limit=STEP)
    return bool(rows[0][0])
