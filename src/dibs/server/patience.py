"""How long a connection may take to say what it wants, and to read what it is told. uvicorn itself waits for ever: a
thousand clients that say nothing would be a thousand open connections, and one that never reads would fill memory."""

from __future__ import annotations

from asyncio import Transport
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEAD_SECONDS = 10.0
HEAD_BYTES = 64 * 1024
UNREAD_SECONDS = 20.0  # without reading anything of what has been waiting for it
UNREAD_BYTES = 256 * 1024


class _Read:
    """Ends a connection whose other side does not read."""

    loop: Any
    transport: Any
    unread: Any = None

    def pause_writing(self) -> None:
        """More waits for it than the system takes."""
        super().pause_writing()  # type: ignore[misc]  # both protocols have it
        self._wait_for_reading()

    def resume_writing(self) -> None:
        """It reads."""
        super().resume_writing()  # type: ignore[misc]
        self._has_read()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._has_read()
        super().connection_lost(error)  # type: ignore[misc]

    def _wait_for_reading(self) -> None:
        self._has_read()
        left = self.transport.get_write_buffer_size()
        self.unread = self.loop.call_later(UNREAD_SECONDS, self._still_unread, left)

    def _still_unread(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:
            self._wait_for_reading()  # slowly, but it does
        else:
            self.transport.abort()

    def _has_read(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None


class Reading(_Read, WebSocketsSansIOProtocol):
    """A WebSocket to somebody who reads."""

    def data_received(self, data: bytes) -> None:
        """Pings are answered past all limits: but not for ever, if nobody reads the answers."""
        super().data_received(data)
        if self.transport.get_write_buffer_size() > UNREAD_BYTES:
            self.transport.abort()


class Impatient(_Read, AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes, both of this shape
    """Closes a connection whose next request has begun, or might have, and has not come to its body in time, or does
    not come to it at all."""

    def connection_made(self, transport: Transport) -> None:
        """It is expected to ask something."""
        super().connection_made(transport)
        self.waiting: Any = None
        self.head = 0  # bytes
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Some of a head, or of a body."""
        if self.waiting is None and self._idle():
            self._wait()
        super().data_received(data)
        if not self._idle():
            self._enough()
            self.head = 0
            return
        self.head += len(data)
        if self.head > HEAD_BYTES:
            self.transport.abort()

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
