"""The ASGI application: routes, the socket, and what stands before them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.routing import Route as Path
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from dibs.app import Dibs
from dibs.errors import DibsError
from dibs.server.access import Gate
from dibs.server.adder import Adder
from dibs.server.guard import LOCAL, Guard
from dibs.server.hub import Hub
from dibs.server.judge import Judge
from dibs.server.openapi import pages
from dibs.server.problems import Refusal, answer, problem_of
from dibs.server.rest import batches, callbacks, claims, events, jobs, queues
from dibs.server.rest.route import Route, Server
from dibs.server.rows import Rows
from dibs.server.socket import Socket, Sockets

ROUTES: list[Route] = [*jobs.ROUTES, *events.ROUTES, *batches.ROUTES, *queues.ROUTES, *claims.ROUTES, *callbacks.ROUTES]
ALL = [*ROUTES, *pages(ROUTES)]


def asgi(
    app: Dibs,
    *,
    local: bool = False,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    unknown_tasks: bool = False,
    commands: bool = False,
) -> ASGIApp:
    """The API of an app, to be mounted anywhere.

    Every request needs a token (`dibs tokens create`). `local`: while there is none, whoever can reach this server
    under a local name may do everything; for your own machine. `hosts`: names under which it may be asked. `origins`:
    of web pages that may ask it. `unknown_tasks`: jobs of types that the app does not declare may be added.
    `commands`: so may jobs that run programs.

    >>> from dibs import Dibs
    >>> from dibs.server import asgi
    >>> api = asgi(Dibs("sqlite:///shop.db"))
    """
    server = Server(
        app,
        Hub(app.engine, app.settings.look),
        Gate(app, local=local),
        Judge(app),
        Adder(app),
        app.settings.masked,
        unknown_tasks,
        commands,
    )

    sockets, rows = Sockets(), Rows(app, server.hub)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        await sockets.aclose()
        await rows.aclose()
        await server.hub.aclose()
        await server.judge.aclose()

    socket = _socket(server, rows, sockets)
    routes: list[BaseRoute] = [
        *(Path(path, _endpoint(server, found), methods=list(found)) for path, found in _by_path().items()),
        WebSocketRoute("/ws", socket),
        WebSocketRoute("/", socket),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, Exception), _failed)
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Guard(inner, hosts=LOCAL | set(hosts or ()) if local or hosts else None, origins=origins)


def _by_path() -> dict[str, dict[str, Route]]:
    found: dict[str, dict[str, Route]] = {}
    for route in ALL:
        found.setdefault(route.path, {})[route.method] = route
    return found


def _endpoint(server: Server, routes: dict[str, Route]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            method = "GET" if request.method == "HEAD" else request.method
            return await routes[method].carry(server, request)
        except (Refusal, DibsError) as error:
            return answer(problem_of(error))

    return endpoint


def _socket(server: Server, rows: Rows, sockets: Sockets) -> Callable[[WebSocket], Awaitable[None]]:
    async def endpoint(websocket: WebSocket) -> None:
        try:
            await server.gate.access(websocket.headers)
        except (Refusal, DibsError) as error:
            await websocket.close(1008, problem_of(error).detail[:120])
            return
        await sockets.run(Socket(websocket, server.hub, rows, server.gate, server.mask))

    return endpoint


async def _failed(request: Request, error: Exception) -> Response:
    """What no route has answered: paths that there are not, and mistakes of ours."""
    if isinstance(error, HTTPException):
        code = {404: "no_such_path", 405: "method_not_allowed"}.get(error.status_code, "refused")
        refusal = Refusal(error.status_code, code, f"{request.method} {request.url.path[:200]}: {error.detail}.")
        refused = answer(refusal.problem)
        refused.headers.update(error.headers or {})  # which methods there are
        return refused
    return answer(problem_of(error))
