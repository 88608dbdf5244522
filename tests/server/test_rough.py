"""Clients that misbehave: each is refused or dropped, memory stays flat, and the others do not notice."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dibs import Dibs
from dibs.job import NewJob
from dibs.operations import jobs
from tests.apps import on_one
from tests.scenarios.teams import Team
from tests.server.test_outages import served
from tests.servers.ports import free_port

SOON = 5.0  # seconds in which others are answered, whatever goes on
GROWTH = 30_000  # kB that the server may grow by
PAGE = 4  # kB
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.fixture
def team(url: str, tmp_path: Path) -> Iterator[Team]:
    """An app in a module; nobody works."""
    with Team.hire(tmp_path, url, "\n@app.task(name='noop')\ndef noop(n: int) -> None: ...\n") as team:
        yield team


class Neighbour:
    """Somebody who behaves, and minds how long it waits."""

    def __init__(self, port: int, raw: ClientConnection) -> None:
        self.address, self.raw = f"http://127.0.0.1:{port}", raw
        self.slowest = 0.0

    def ask(self) -> None:
        """Over HTTP and over the socket."""
        began = time.monotonic()
        assert httpx.get(f"{self.address}/api/queues", timeout=20).status_code == 200
        self.raw.send('{"action":"ping"}')
        assert json.loads(self.raw.recv(timeout=20)) == {"type": "pong"}
        self.slowest = max(self.slowest, time.monotonic() - began)


@contextmanager
def beside_a_neighbour(team: Team) -> Iterator[tuple[int, Neighbour]]:
    """A server, and somebody who is not to notice; the server does not grow."""
    port = free_port()
    with served(team, port) as process, connect(f"ws://127.0.0.1:{port}/ws", compression=None) as raw:

        def memory() -> int:
            return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE

        neighbour = Neighbour(port, raw)
        neighbour.ask()
        before = memory()
        yield port, neighbour
        neighbour.ask()
        assert memory() - before < GROWTH
        assert neighbour.slowest < SOON


def is_cut_off(raw: socket.socket, text: bytes) -> bool:
    """Say this a thousand times: whether the other side has had enough before."""
    try:
        for _ in range(1_000):
            raw.sendall(text)
    except ConnectionError:
        return True
    return False


def add(app: Dibs, count: int) -> None:
    app.engine.run(jobs.add_many([NewJob("noop", b'{"n":1}')] * count))


@pytest.mark.slow
@on_one
def test_a_client_that_never_reads(team: Team) -> None:
    with beside_a_neighbour(team) as (port, neighbour), ExitStack() as stack:
        deaf = [
            stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws", compression=None, max_queue=1, close_timeout=0))
            for _ in range(5)
        ]
        for each in deaf:
            each.send('{"action":"subscribe","all":true}')
        for _ in range(10):
            add(team.app, 1_000)
            team.app.engine.run(jobs.cancel_matching(jobs.Filter()))
            neighbour.ask()


@pytest.mark.slow
@on_one
def test_a_flood_of_messages(team: Team) -> None:
    with beside_a_neighbour(team) as (port, neighbour), ExitStack() as stack:
        flood = stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws", compression=None, close_timeout=0))
        with suppress(ConnectionClosed):  # it does not read, and is dropped
            for number in range(10_000):
                flood.send('{"action":"dance"}' if number % 2 else '{"action":"ping"}')
                if number % 2_500 == 0:
                    neighbour.ask()


@pytest.mark.slow
@pytest.mark.long
@on_one
def test_a_thousand_connections_that_say_nothing(team: Team) -> None:
    """They are closed after 10 s; until then they only wait."""
    with beside_a_neighbour(team) as (port, neighbour), ExitStack() as stack:
        silent = []
        for number in range(1_000):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            raw.sendall(b"" if number % 2 else b"POST /api/jobs HTTP/1.1\r\nHost: loc")
            silent.append(raw)
        neighbour.ask()
        for raw in silent:
            raw.settimeout(30)
            assert raw.recv(100) in (b"",)
        neighbour.ask()


@pytest.mark.slow
@pytest.mark.long
@on_one
def test_a_body_that_comes_drop_by_drop(team: Team) -> None:
    with beside_a_neighbour(team) as (port, _), socket.create_connection(("127.0.0.1", port)) as raw:
        head = (
            "POST /api/jobs HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            "Content-Length: 99",
            "",
        )
        raw.sendall("\r\n".join([*head, "{"]).encode())
        raw.settimeout(30)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 408")


@pytest.mark.slow
@on_one
def test_pings_whose_answers_nobody_reads(team: Team) -> None:
    with beside_a_neighbour(team) as (port, neighbour), socket.create_connection(("127.0.0.1", port)) as raw:
        raw.settimeout(30)
        raw.sendall(UPGRADE)
        assert raw.recv(10_000).startswith(b"HTTP/1.1 101")
        ping = b"\x89\xfd" + bytes(4) + bytes(125)
        assert is_cut_off(raw, ping * 1_000)
        neighbour.ask()


@pytest.mark.slow
@on_one
def test_a_head_without_end(team: Team) -> None:
    with beside_a_neighbour(team) as (port, neighbour), socket.create_connection(("127.0.0.1", port)) as raw:
        raw.settimeout(30)
        raw.sendall(b"GET /api/queues HTTP/1.1\r\nHost: localhost\r\n")
        assert is_cut_off(raw, b"X-More: " + b"x" * 100_000 + b"\r\n")
        neighbour.ask()
