"""A job's states as they come, as server-sent events: for whoever has no WebSocket at hand. A browser's EventSource
comes again by itself and says what it saw last; what is newer is sent at once. After the last state the answer ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from dibs.job import BIGGEST
from dibs.operations.rows import Seen
from dibs.server.problems import whole_number
from dibs.server.rest.route import Asked, Route
from dibs.server.wire import event_shown

QUIET = 15.0  # seconds after which a comment shows that we are still there


class Listener:
    """Somebody who wants the last state of one job."""

    def __init__(self, since: int) -> None:
        self.told, self.gone = since, False
        self.latest: Seen | None = None
        self.some = asyncio.Event()

    def tell(self, seen: Seen) -> None:
        """Kept until it is sent, unless a newer one comes first."""
        if seen.version > self.told:
            self.told, self.latest = seen.version, seen
            self.some.set()

    def missing(self, job_id: int) -> None:
        """There is no such job any more."""
        self.gone = True
        self.some.set()


async def events(asked: Asked) -> Response:
    """Everything newer than Last-Event-ID, or the current state; then each change."""
    last = asked.request.headers.get("last-event-id")
    since = -1 if last is None else whole_number(last, "Last-Event-ID", BIGGEST)
    job = await asked.server.app.aget(asked.job_id)
    if job.state.final and since >= job.version:
        return Response(status_code=204)  # which tells an EventSource not to come again
    return StreamingResponse(_stream(asked, job.id, Listener(since)), media_type="text/event-stream")


async def _stream(asked: Asked, job_id: int, listener: Listener) -> AsyncIterator[bytes]:
    hub = asked.server.hub
    hub.watch(listener, job_id)
    try:
        yield b": dibs\n\n"
        while not listener.gone:
            try:
                async with asyncio.timeout(QUIET):
                    await listener.some.wait()
            except TimeoutError:
                if not await asked.is_still_allowed():
                    return
                yield b": still there\n\n"
                continue
            listener.some.clear()
            seen, listener.latest = listener.latest, None
            if seen is not None:
                if not await asked.is_still_allowed():
                    return
                text = msgspec.json.encode(event_shown(seen, asked.server.mask))
                yield b"id: %d\ndata: %s\n\n" % (seen.version, text)
                if seen.state.final:
                    return
    finally:
        hub.unwatch(listener, job_id)


ROUTES = [
    Route(
        "GET",
        "/api/jobs/{job_id}/events",
        "read",
        events,
        "A job's states, as server-sent events",
        of_job=True,
        waits=True,
        query={"token": {"type": "string", "pattern": "^dibsw_"}},
        headers={"Last-Event-ID": {"type": "integer", "minimum": 0, "maximum": BIGGEST}},
        also=(204,),
        media="text/event-stream",
    ),
]
