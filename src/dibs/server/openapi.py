"""The OpenAPI document, made of the routes and their shapes; and a page to read it that needs nothing else."""
# ruff: noqa: E501  # the page

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import Response

from dibs.job import BIGGEST, MAX_NAME
from dibs.server.problems import Problem, camel
from dibs.server.rest.route import Asked, Route
from dibs.server.wire import NO_CONTROL

REF = "#/components/schemas/{name}"
PARAMETERS: dict[str, Any] = {
    "job_id": {"type": "integer", "minimum": 1, "maximum": BIGGEST},
    "batch_id": {"type": "integer", "minimum": 1, "maximum": BIGGEST},
    "queue": {"type": "string", "minLength": 1, "maxLength": MAX_NAME, "pattern": NO_CONTROL},
    "token": {"type": "string", "pattern": r"^dibsc_[0-9]{1,19}_[0-9]{1,9}_[A-Za-z0-9_-]{43}$"},
    "lease": {"type": "string", "pattern": r"^[0-9]{1,19}\.[0-9]{1,19}$"},
}
REFUSALS = {
    400: "The body is not JSON",
    401: "No token, or not one that is known",
    403: "The token does not allow it, or a page of another origin asks",
    404: "There is no such thing",
    408: "The body came too slowly",
    409: "It is in a state in which that cannot be done",
    413: "The body is too large",
    415: "The content type is not application/json",
    421: "Asked under a name that is not allowed",
    422: "A value is not valid; `field` names it",
    503: "The database cannot be used now",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "code{font:14px ui-monospace,monospace;background:#f3f3f3;padding:.1rem .3rem;border-radius:3px}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.4rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}code{background:#2a2a2a}td,th{border-color:#333}}"
)
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>dibs API</title>
<meta name="viewport" content="width=device-width"><style>{style}</style></head><body>
<h1>dibs API</h1>
<p>Send a token as <code>Authorization: Bearer ...</code>, and JSON with <code>Content-Type: application/json</code>.
Errors are <code>application/problem+json</code> with a <code>code</code>, a <code>detail</code> and perhaps a <code>field</code>.
The whole of it, for machines: <a href="{root}/openapi.json">openapi.json</a>.</p>
<table><thead><tr><th>request</th><th>scope</th><th>what it does</th></tr></thead><tbody>{rows}</tbody></table>
<h2>WebSocket</h2>
<p>At <code>/ws</code> and <code>/</code>. Send <code>{{"action":"subscribe","jobId":42}}</code>, or <code>"queue":"mail"</code> or
<code>"all":true</code> or <code>"batchId":7</code> instead of the job; <code>"since"</code> with the last version seen, and <code>"token"</code>, if wanted.
Also <code>unsubscribe</code> and <code>ping</code>. What comes:
<code>{{"jobId":42,"status":"RUNNING","attempts":1,"error":null,"version":3}}</code></p>
</body></html>"""


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """OpenAPI 3.1 of these routes."""
    shapes = [Problem, *(shape for route in routes for shape in (route.body, route.returns) if shape is not None)]
    _, components = msgspec.json.schema_components(dict.fromkeys(shapes), ref_template=REF)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(_wire(route.path), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dibs", "version": version("dibs"), "description": "Background jobs on your database."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _wire(path: str) -> str:
    return path.replace("{job_id}", "{jobId}").replace("{batch_id}", "{batchId}")


def _operation(route: Route) -> dict[str, Any]:
    named = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": camel(name), "in": "path", "required": True, "schema": PARAMETERS[name]} for name in named]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in route.query.items()]
    parameters += [{"name": name, "in": "header", "schema": schema} for name, schema in route.headers.items()]
    found: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {str(route.status): _answer(route), **{str(code): _refusal(code) for code in REFUSALS}},
        "security": [{"token": []}] if route.scope else [],
    }
    for code in route.also:
        found["responses"][str(code)] = _answer(route) if code == 200 else {"description": "Nothing more to say"}
    if route.scope:
        found["description"] = f"Scope: {route.scope}."
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    elif route.method != "GET":
        empty = {"type": "object", "additionalProperties": False}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": empty}}}
    return found


def _answer(route: Route) -> dict[str, Any]:
    if route.returns is None:
        return {"description": route.summary, "content": {route.media: {}}}
    return {"description": route.summary, "content": {"application/json": {"schema": _ref(route.returns)}}}


def _refusal(code: int) -> dict[str, Any]:
    return {"description": REFUSALS[code], "content": {"application/problem+json": {"schema": _ref(Problem)}}}


def _ref(shape: Any) -> dict[str, str]:
    return {"$ref": REF.format(name=shape.__name__)}


def pages(routes: Sequence[Route]) -> list[Route]:
    """The routes that show the routes."""
    text = msgspec.json.encode(document(routes))
    rows = "".join(
        f"<tr><td><code>{route.method} {escape(_wire(route.path))}</code></td>"
        f"<td>{route.scope or ''}</td><td>{escape(route.summary)}</td></tr>"
        for route in routes
    )

    async def openapi(asked: Asked) -> Response:
        return Response(text, media_type="application/json")

    async def docs(asked: Asked) -> Response:
        root = escape(asked.request.scope.get("root_path", ""), quote=True)
        page = PAGE.format(style=STYLE, rows=rows, root=root)
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return Response(page, media_type="text/html", headers={"content-security-policy": policy})

    return [
        Route("GET", "/openapi.json", None, openapi, "This API, for machines", media="application/json"),
        Route("GET", "/docs", None, docs, "This API, for people", media="text/html"),
    ]
