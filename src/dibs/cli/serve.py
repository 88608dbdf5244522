"""`dibs serve`: the HTTP API and the WebSocket."""

from __future__ import annotations

import logging

import click

from dibs.app import Dibs
from dibs.cli.logs import log_options, set_up
from dibs.cli.target import load, target_argument
from dibs.errors import MissingDriver
from dibs.operations import tokens

log = logging.getLogger("dibs")

IDLE = 10  # seconds that a connection may be idle before its next request
PING = 20.0  # seconds between pings of a WebSocket, and for their answer


@click.command()
@target_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; others need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--allow-host", multiple=True, help="A name under which this server may be asked, beside localhost.")
@click.option("--allow-origin", multiple=True, help="Web pages that may ask it, like https://shop.example.")
@click.option("--allow-unknown-tasks", is_flag=True, help="Jobs of types that the app does not declare may be added.")
@click.option("--allow-commands", is_flag=True, help="Jobs that run programs may be added over HTTP.")
@log_options
def serve(
    target: str | None,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    allow_unknown_tasks: bool,
    allow_commands: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Add and watch jobs over HTTP and WebSockets. On this machine alone, unless there are tokens.

    \b
    Example: dibs serve shop.jobs:app
             dibs serve shop.jobs:app --host 0.0.0.0 --port 80
    """
    set_up(log_format, log_level)
    app = load(target, new=True)
    try:
        import uvicorn

        from dibs.server import asgi
        from dibs.server.guard import is_local
        from dibs.server.patience import Impatient, Reading
    except ImportError as error:
        raise MissingDriver(error.name or "starlette", "server") from error
    local = is_local(host)
    if not local or allow_host:
        _need_a_token(app, host if not local else allow_host[0])
    api = asgi(
        app,
        local=local,
        hosts=[*allow_host, *([host] if local else [])] if local or allow_host else None,
        origins=allow_origin,
        unknown_tasks=allow_unknown_tasks,
        commands=allow_commands,
    )
    uvicorn.run(
        api,
        host=host,
        port=port,
        http=Impatient,
        ws=Reading,
        ws_max_size=16 * 1024,
        ws_ping_interval=PING,
        ws_ping_timeout=PING,
        ws_per_message_deflate=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=2,
        proxy_headers=False,
        server_header=False,
        log_config=None,
        access_log=False,
    )


def _need_a_token(app: Dibs, host: str) -> None:
    if not app.engine.run(tokens.list_tokens()):
        raise click.ClickException(
            f"{host} can be reached from other machines, and there is no token: anybody could add and cancel jobs. "
            "Create one first: dibs tokens create APP NAME --scope read"
        )
