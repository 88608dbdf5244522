"""What people watch: the state of jobs by their ids, with the version that tells the newer of two; and new jobs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dibs.operations.operation import Conversation, Statement, operation
from dibs.operations.rows import Seen, seen_from_row


@operation(reads=True)
def look(ids: Collection[int]) -> Conversation[list[Seen]]:
    """Those of the jobs that there are, wherever they are."""
    rows = yield Statement("states", ids=list(ids))
    return [seen_from_row(row) for row in rows]


@operation(reads=True)
def newest() -> Conversation[int]:
    """The highest id that a job has; 0 when there is none."""
    rows = yield Statement("newest")
    return int(rows[0][0] or 0)


@operation(reads=True)
def newer(after: int, queues: Collection[str] | None, limit: int) -> Conversation[set[int]]:
    """Jobs added after that one, of these queues (None: of all); of more than so many the first."""
    rows = yield Statement("newer", after=after, limit=limit, **_of(queues))
    return {row[0] for row in rows}


@operation(reads=True)
def oldest(queues: Collection[str] | None, limit: int) -> Conversation[set[int]]:
    """Those of the jobs that are not final which have been there longest."""
    rows = yield Statement("oldest", limit=limit, **_of(queues))
    return {row[0] for row in rows}


def _of(queues: Collection[str] | None) -> dict[str, Any]:
    return {"every": queues is None, "queues": list(queues or ())}
