"""What holds for every request before anyone looks at it: which host it names, which page sent it, how large it is and
how long it takes; and the headers that every answer carries. So no web page that a developer visits can talk to us."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dibs.server.problems import Refusal, answer

BODY = 1024 * 1024  # bytes
BODY_SECONDS = 10.0  # for the whole of a body to arrive
WRITES = {"POST", "PUT", "PATCH", "DELETE"}
LOCAL = {"localhost", "127.0.0.1", "[::1]"}
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class Guard:
    """Stands before the application. `hosts`: names under which we may be asked (None: any); `origins`: of web pages
    that may ask, beside our own."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        self.app, self.hosts, self.origins = app, hosts, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        guarded = _Answers(send, origin if origin in self.origins else None)
        try:
            self._check(scope, headers, origin)
        except Refusal as refusal:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": str(refusal)})
            else:
                await answer(refusal.problem)(scope, receive, guarded)
            return
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and origin is not None:
            await guarded.preflight()
        else:
            await self.app(scope, _Limited(receive), guarded)

    def _check(self, scope: Scope, headers: Headers, origin: str | None) -> None:
        host = headers.get("host", "")
        if self.hosts is not None and host_name(host) not in self.hosts:
            text = f"This server is not asked as {host[:100]!r}. Name that host with --allow-host, if it is yours."
            raise Refusal(421, "wrong_host", text)
        if origin is not None and origin not in self.origins and _from(origin) != host:
            text = f"A page of {origin[:100]} may not ask this server. Name it with --allow-origin, if it is yours."
            raise Refusal(403, "wrong_origin", text)
        if scope["type"] != "http" or scope["method"] not in WRITES:
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "not_json", "A request that changes something needs: Content-Type: application/json")
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18 or int(length) > BODY:
            raise too_large()


def too_large() -> Refusal:
    """The body has too many bytes."""
    return Refusal(413, "body_too_large", f"The body of a request has {BODY:,} bytes at most.")


class _Limited:
    """Receives a body: so much, in so much time."""

    def __init__(self, receive: Receive) -> None:
        self.receive, self.size = receive, 0
        self.until = asyncio.get_running_loop().time() + BODY_SECONDS
        self.whole = False

    async def __call__(self) -> Message:
        if self.whole:
            return await self.receive()  # waits until the client is gone
        try:
            async with asyncio.timeout_at(self.until):
                message = await self.receive()
        except TimeoutError:
            raise Refusal(408, "too_slow", f"The body did not arrive within {BODY_SECONDS:g} s.") from None
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.size > BODY:
                raise too_large()
        return message


class _Answers:
    """Adds what every answer carries."""

    def __init__(self, send: Send, origin: str | None) -> None:
        self.send, self.origin = send, origin

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.add_vary_header("origin")
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
        await self.send(message)

    async def preflight(self) -> None:
        """A browser asks whether a page may ask."""
        headers = [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", b"authorization, content-type, idempotency-key, last-event-id"),
            (b"access-control-max-age", b"600"),
        ]
        await self({"type": "http.response.start", "status": 204, "headers": headers})
        await self({"type": "http.response.body"})


def host_name(host: str) -> str:
    """Without the port.

    >>> host_name("Localhost:8080"), host_name("[::1]:80")
    ('localhost', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def is_local(name: str) -> bool:
    """Whether only this machine can mean itself by it.

    >>> is_local("localhost"), is_local("127.0.0.9"), is_local("192.0.2.1")
    (True, True, False)
    """
    if name in LOCAL:
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _from(origin: str) -> str:
    """The host that a page came from; none that there is, if it cannot be read."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
