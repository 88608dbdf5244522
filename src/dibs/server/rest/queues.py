"""Queues, workers and statistics: looking at them; pausing and resuming queues."""

from __future__ import annotations

from datetime import UTC, datetime

from dibs.operations import queues, stats, workers
from dibs.server.problems import whole_number
from dibs.server.rest.route import Asked, Route
from dibs.server.wire import MinuteShown, QueuesShown, StatsShown, WorkerShown, WorkersShown, queue_shown, shown


async def list_queues(asked: Asked) -> QueuesShown:
    """What each holds."""
    now = datetime.now(UTC)
    return QueuesShown(queues=[queue_shown(counts, now) for counts in await asked.server.app.aqueues()])


async def pause(asked: Asked) -> QueuesShown:
    """Nobody claims from it any more."""
    await asked.server.app.engine.arun(queues.pause(asked.request.path_params["queue"]))
    return await list_queues(asked)


async def resume(asked: Asked) -> QueuesShown:
    """Claim from it again."""
    await asked.server.app.engine.arun(queues.resume(asked.request.path_params["queue"]))
    return await list_queues(asked)


async def list_workers(asked: Asked) -> WorkersShown:
    """Everyone enlisted."""
    rows = await asked.server.app.engine.arun(workers.list_workers())
    found = {row.name: row for row in rows}.values()  # a worker has a row for each of its lanes
    return WorkersShown(workers=[shown(row, WorkerShown) for row in found])


async def read_stats(asked: Asked) -> StatsShown:
    """The last minutes."""
    text = asked.query("minutes")
    count = 60 if text is None else whole_number(text, "minutes", stats.MAX_MINUTES, least=1)
    found = await asked.server.app.engine.arun(stats.minutes(count))
    return StatsShown(minutes=[shown(minute, MinuteShown) for minute in found])


MINUTES = {"minutes": {"type": "integer", "minimum": 1, "maximum": stats.MAX_MINUTES, "default": 60}}

ROUTES = [
    Route("GET", "/api/queues", "read", list_queues, "What each queue holds", returns=QueuesShown),
    Route("POST", "/api/queues/{queue}/pause", "operate", pause, "Claim no more from a queue", returns=QueuesShown),
    Route("POST", "/api/queues/{queue}/resume", "operate", resume, "Claim from it again", returns=QueuesShown),
    Route("GET", "/api/workers", "read", list_workers, "The workers", returns=WorkersShown),
    Route("GET", "/api/stats", "read", read_stats, "What jobs came to, by minute", returns=StatsShown, query=MINUTES),
]
