"""Batches: looking at them, and acting on all that one has."""

from __future__ import annotations

from typing import Any

from dibs.job import BIGGEST
from dibs.operations import batches
from dibs.operations.jobs import BULK, MAX_PAGE, Bulk
from dibs.operations.operation import Operation
from dibs.server.problems import Refusal, whole_number
from dibs.server.rest.jobs import PAGED, STEPS
from dibs.server.rest.route import Asked, Route
from dibs.server.wire import BatchesShown, BatchShown, CursorBody, DoneShown, batch_shown

UNFINISHED: dict[str, Any] = {"unfinished": {"type": "string", "enum": ["true", "false"], "default": "false"}}
SOME = f"{STEPS * BULK:,} at most; with a cursor in the answer, ask again with it"


def _id(asked: Asked) -> int:
    return whole_number(asked.request.path_params["batch_id"], "batchId", BIGGEST, least=1)


async def list_batches(asked: Asked) -> BatchesShown:
    """Some of them, newest first."""
    limit, cursor, unfinished = asked.query("limit"), asked.query("cursor"), asked.query("unfinished")
    if unfinished not in (None, "true", "false"):
        raise Refusal(422, "invalid_option", "unfinished: is true or false", "unfinished")
    operation = batches.page(
        limit=50 if limit is None else whole_number(limit, "limit", MAX_PAGE, least=1),
        before=None if cursor is None else whole_number(cursor, "cursor", BIGGEST),
        unfinished=unfinished == "true",
    )
    page = await asked.server.app.engine.arun(operation)
    return BatchesShown(batches=[batch_shown(each) for each in page.batches], cursor=page.cursor)


async def read_batch(asked: Asked) -> BatchShown:
    """One batch."""
    return batch_shown(await asked.server.app.engine.arun(batches.progress(_id(asked))))


async def close_batch(asked: Asked) -> BatchShown:
    """No more jobs from outside."""
    await read_batch(asked)
    await asked.server.app.engine.arun(batches.close(_id(asked)))
    return await read_batch(asked)


async def cancel_batch(asked: Asked) -> DoneShown:
    """Close it, and cancel what is left."""
    await close_batch(asked)
    return await _all(asked, batches.cancel_some)


async def retry_batch(asked: Asked) -> DoneShown:
    """Let its FAILED jobs run again."""
    await read_batch(asked)
    return await _all(asked, batches.retry_some)


async def _all(asked: Asked, step: Any) -> DoneShown:
    total, cursor = DoneShown(done=0, refused=0, cursor=asked.body.cursor), asked.body.cursor
    for _ in range(STEPS):
        operation: Operation[Bulk] = step(_id(asked), after=cursor)
        bulk = await asked.server.app.engine.arun(operation)
        total.done, total.refused, total.cursor = total.done + bulk.done, total.refused + bulk.refused, bulk.cursor
        if bulk.cursor is None:
            break
        cursor = bulk.cursor
    return total


PLACE = "/api/batches/{batch_id}"

ROUTES = [
    Route(
        "GET",
        "/api/batches",
        "read",
        list_batches,
        "Batches, newest first",
        returns=BatchesShown,
        query={**UNFINISHED, **PAGED},
    ),
    Route("GET", PLACE, "read", read_batch, "How far a batch is", returns=BatchShown),
    Route(
        "POST", f"{PLACE}/cancel", "operate", cancel_batch, f"Cancel what is left of it ({SOME})", CursorBody, DoneShown
    ),
    Route("POST", f"{PLACE}/retry", "operate", retry_batch, f"Retry what failed in it ({SOME})", CursorBody, DoneShown),
    Route("POST", f"{PLACE}/close", "operate", close_batch, "Take no more jobs from outside", returns=BatchShown),
]
