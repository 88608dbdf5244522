"""A server in a thread of the test, at a port of its own, and clients that talk to it over real sockets."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from websockets.sync.client import ClientConnection, connect

from dibs import Dibs
from dibs.server import asgi

PATIENCE = 20.0


@dataclass
class Serving:
    """Where the server is."""

    app: Dibs
    port: int

    @property
    def address(self) -> str:
        """For HTTP."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """Somebody who asks."""
        known = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers={**known, **headers}, timeout=PATIENCE)

    @contextmanager
    def socket(self, token: str | None = None, path: str = "/ws", **options: Any) -> Iterator["Ear"]:
        """Somebody who watches, and leaves without waiting for an answer: it may be behind what it has not read."""
        known = {"authorization": f"Bearer {token}"} if token else {}
        options = {"additional_headers": known, "compression": None, "close_timeout": 0, **options}
        with connect(f"ws://127.0.0.1:{self.port}{path}", **options) as raw:
            yield Ear(raw)


@dataclass
class Ear:
    """A WebSocket as a test uses it."""

    raw: ClientConnection

    def say(self, **message: Any) -> None:
        """One message."""
        self.raw.send(json.dumps(message))

    def hear(self) -> Any:
        """The next."""
        return json.loads(self.raw.recv(timeout=PATIENCE))

    def until(self, status: str) -> list[Any]:
        """Everything up to that state."""
        heard = [self.hear()]
        while heard[-1].get("status") != status:
            heard.append(self.hear())
        return heard


class Announced(uvicorn.Server):
    """Says when it listens, or has failed to."""

    def __init__(self, config: uvicorn.Config, began: threading.Event) -> None:
        super().__init__(config)
        self.began = began

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.began.set()


@contextmanager
def serving(app: Dibs, *, port: int = 0, **options: Any) -> Iterator[Serving]:
    """Serve an app until the end of the block."""
    config = uvicorn.Config(
        asgi(app, **{"local": True, **options}),
        port=port,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    began = threading.Event()
    server = Announced(config, began)

    async def run() -> None:
        await server.serve()
        await app.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="server")
    thread.start()
    assert began.wait(PATIENCE)
    try:
        yield Serving(app, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
