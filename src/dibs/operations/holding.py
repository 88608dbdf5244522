"""Whether jobs that have not begun may stay in the hands of their worker: not beside one that has nothing to do, nor
when their queue is paused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dibs.job import WorkerId
from dibs.operations.operation import Conversation, Statement, operation


class Reasons(NamedTuple):
    """To hand jobs back."""

    others_ask: bool  # other workers claim, or could
    paused: frozenset[str]  # queues


@operation(reads=True)
def reasons(workers: Sequence[WorkerId]) -> Conversation[Reasons]:
    """Why these workers, who hold jobs that have not begun, should not."""
    rows = yield Statement("reasons_not_to_hold", workers=list(workers))
    return Reasons(any(row[0] is None for row in rows), frozenset(row[0] for row in rows if row[0] is not None))


@operation()
def ask(workers: Sequence[WorkerId]) -> Conversation[None]:
    """From now on, and not only from the next beat on, these could claim more than there is."""
    yield Statement("asks", workers=list(workers))
