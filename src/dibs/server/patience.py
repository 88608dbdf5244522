"""How long a connection may take to say what it wants. uvicorn itself waits for ever for the head of a request, so a
thousand clients that say nothing would be a thousand open connections."""

from __future__ import annotations

from asyncio import Transport
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 10.0


class Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes, both of this shape
    """Closes a connection whose next request has begun, or might have, and has not come to its body in time."""

    def connection_made(self, transport: Transport) -> None:
        """It is expected to ask something."""
        super().connection_made(transport)
        self.waiting: Any = None
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Some of a head, or of a body."""
        if self.waiting is None and self._idle():
            self._wait()
        super().data_received(data)
        if not self._idle():
            self._enough()

    def handle_websocket_upgrade(self, *args: Any) -> None:
        """From now on another protocol has the connection."""
        self._enough()
        super().handle_websocket_upgrade(*args)

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._enough()
        super().connection_lost(error)

    def _idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self.waiting = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _enough(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _too_late(self) -> None:
        self.waiting = None
        if self._idle() and not self.transport.is_closing():
            self.transport.close()
