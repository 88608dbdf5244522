"""What a route is, and what its handler is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dibs.app import Dibs
from dibs.job import BIGGEST
from dibs.server.access import Gate
from dibs.server.adder import Adder
from dibs.server.hub import Hub
from dibs.server.judge import Judge
from dibs.server.problems import Refusal, invalid, whole_number
from dibs.tokens import Access

encode = msgspec.json.Encoder().encode

ROOM = 20  # requests that ask the database at once: each may take a connection


@dataclass(frozen=True, slots=True)
class Server:
    """What all requests share."""

    app: Dibs
    hub: Hub
    gate: Gate
    judge: Judge
    adder: Adder
    mask: frozenset[str]
    unknown_tasks: bool = False  # jobs of types that the app does not declare may be added
    commands: bool = False  # so may jobs that run programs
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ROOM))

    async def access(self, route: Route, request: Request) -> Access:
        """What the sender may do, as of now."""
        token = request.query_params.get("token") if "token" in route.query else None
        return await self.gate.access(request.headers, token)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, checked: its body is what the route says."""

    server: Server
    request: Request
    access: Access
    route: Route
    body: Any = None

    async def is_still_allowed(self) -> bool:
        """Whether the token is as good as when the request came."""
        return (await self.server.access(self.route, self.request)).may(self.route.scope, self.job_id)

    @property
    def job_id(self) -> int:
        """The job in the path."""
        return whole_number(self.request.path_params["job_id"], "jobId", BIGGEST, least=1)

    def query(self, name: str) -> str | None:
        """A parameter in the query."""
        return self.request.query_params.get(name)


Handler = Callable[[Asked], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `scope`: who may; None: anybody. `returns`: the shape of the answer, None: none."""

    method: str
    path: str
    scope: str | None
    handler: Handler
    summary: str
    body: Any = None
    returns: Any = None
    status: int = 200
    query: Mapping[str, Any] = field(default_factory=dict)  # its parameters, as OpenAPI shows them
    headers: Mapping[str, Any] = field(default_factory=dict)  # those that mean something here, likewise
    also: tuple[int, ...] = ()  # other answers that are no refusals
    media: str = "application/json"
    of_job: bool = False  # a token to watch that one job will do
    waits: bool = False  # for something to happen, so that it would keep others waiting

    async def carry(self, server: Server, request: Request) -> Response:
        """See that it is allowed and well-formed, and answer."""
        access = await server.access(self, request)
        job = whole_number(request.path_params["job_id"], "jobId", BIGGEST, least=1) if self.of_job else None
        if not access.may(self.scope, job):
            raise _not_allowed(self.scope, known=access.scopes or access.job is not None)
        unknown = request.query_params.keys() - self.query.keys()
        if unknown:
            name = min(unknown)
            raise Refusal(422, "invalid_query", f"There is no parameter {name[:50]!r} here.", name[:50])
        asked = Asked(server, request, access, self, await self._read(request))
        async with nullcontext() if self.waits else server.room:
            answer = await self.handler(asked)
        if isinstance(answer, Response):
            return answer
        status = self.status
        if isinstance(answer, tuple):
            status, answer = answer
        return Response(encode(answer), status, media_type="application/json")

    async def _read(self, request: Request) -> Any:
        if self.method == "GET":
            return None
        text = await request.body()
        if self.body is None:
            if text.strip() not in (b"", b"{}"):
                raise Refusal(422, "invalid_body", "This request has no body.")
            return None
        return parsed(text, self.body)


def parsed(text: bytes, shape: Any) -> Any:
    """A body in that shape, or a Refusal that names the place."""
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.MsgspecError as error:
        raise invalid(error) from None
    except UnicodeDecodeError:
        raise Refusal(400, "malformed_json", "The body is not JSON: it is not UTF-8.") from None
    except RecursionError:
        raise Refusal(400, "malformed_json", "The body is nested too deeply.") from None


def _not_allowed(scope: str | None, *, known: Any) -> Refusal:
    if known:
        return Refusal(403, "not_allowed", f"This needs a token with the scope {scope!r}.")
    return Refusal(
        401, "not_authenticated", f"This needs a token with the scope {scope!r}: dibs tokens create. Send it as Bearer."
    )
