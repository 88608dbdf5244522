"""Whoever watches a job learns its end: through a server that is killed and a connection that is cut."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from dibs import Dibs
from dibs.job import NewJob
from dibs.operations import jobs, queues
from tests.actors import Actors
from tests.apps import POSTGRES
from tests.scenarios.teams import Team
from tests.servers.fixtures import OwnServer
from tests.servers.ports import free_port
from tests.servers.postgres import Server

PATIENCE = 60.0
CODE = """
@app.task(name="steps")
async def steps(n: int) -> int:
    for step in range(3):
        current_job().progress(step, 3)
        await asyncio.sleep(0.05)
    return n
"""


@contextmanager
def served(team: Team, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`dibs serve` as a user starts it; returns when it answers."""
    with (team.folder / f"serve-{port}").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dibs", "serve", "shop:app", "--port", str(port)],
            cwd=team.folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        team.until(lambda: answers(port) or process.poll() is not None, "the server answers")
        assert process.poll() is None, (team.folder / f"serve-{port}").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Watching:
    """A client that comes again whenever it is cut off, and says what it saw last."""

    def __init__(self, ports: list[int], job_id: int) -> None:
        self.ports, self.job_id = ports, job_id
        self.heard: list[dict[str, Any]] = []

    def run(self, after_each: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
        """Until the end of the job; `after_each`: whether to hang up after this frame."""
        deadline = time.monotonic() + PATIENCE
        while not self.ended():
            assert time.monotonic() < deadline, f"no end of job {self.job_id}: {self.heard}"
            try:
                with connect(f"ws://127.0.0.1:{random.choice(self.ports)}/ws", compression=None, open_timeout=5) as raw:
                    since = {"since": self.heard[-1]["version"]} if self.heard else {}
                    raw.send(json.dumps({"action": "subscribe", "jobId": self.job_id, **since}))
                    while not self.ended():
                        self.heard.append(json.loads(raw.recv(timeout=20)))
                        if after_each():
                            break
            except (OSError, WebSocketException, TimeoutError):
                time.sleep(0.01)
        return self.heard

    def ended(self) -> bool:
        """Whether the last state was heard."""
        return bool(self.heard) and self.heard[-1]["status"] in ("SUCCESSFUL", "FAILED")

    def check(self) -> None:
        """Versions only grow, and the end is the end."""
        versions = [frame["version"] for frame in self.heard]
        assert versions == sorted(set(versions)), self.heard
        assert self.heard[-1]["status"] == "SUCCESSFUL"


@pytest.fixture
def team(url: str, tmp_path: Path) -> Iterator[Team]:
    """An app in a module, with a worker."""
    with Team.hire(tmp_path, url, CODE, lease=4.0, beat=0.5) as team:
        team.start()
        yield team


@contextmanager
def on_own(folder: Path, own_postgres: OwnServer) -> Iterator[tuple[Server, Team]]:
    """A server of PostgreSQL that may be restarted, and a worker on it."""
    database = own_postgres("postgres18")
    with closing(Dibs(database.url())) as app:
        app.migrate()
    with Team.hire(folder, database.url(), CODE, lease=4.0, beat=0.5) as team:
        team.start()
        yield database, team


def stays(port: int, job_id: int, trouble: Callable[[], None]) -> None:
    """A client that hears the end on one and the same connection, whatever goes on behind the server."""
    watching = Watching([port], job_id)
    with connect(f"ws://127.0.0.1:{port}/ws", compression=None) as raw:
        raw.send(json.dumps({"action": "subscribe", "jobId": job_id}))
        watching.heard.append(json.loads(raw.recv(timeout=PATIENCE)))
        trouble()
        while not watching.ended():
            watching.heard.append(json.loads(raw.recv(timeout=PATIENCE)))
    watching.check()


def add(app: Dibs) -> int:
    """A job that takes a moment."""
    app.engine.run(queues.names())  # if the server was restarted, the connection is a new one after this
    return int(app.engine.run(jobs.add(NewJob("steps", b'{"n":1}'))).id)


LISTENERS = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and query ilike '%listen%'
"""


def cut_off(app: Dibs) -> None:
    """End the connections that listen."""
    Actors(app.engine).sql(LISTENERS)


@pytest.mark.slow
def test_the_conversation_between_three_processes(team: Team) -> None:
    port = free_port()
    with served(team, port):
        watching = Watching([port], add(team.app))
        heard = watching.run()
        watching.check()
        assert {frame["status"] for frame in heard} >= {"RUNNING", "SUCCESSFUL"}
        assert any("progress" in frame for frame in heard)


@pytest.mark.slow
def test_since_after_every_single_frame(team: Team) -> None:
    port = free_port()
    with served(team, port):
        for _ in range(5):
            watching = Watching([port], add(team.app))
            watching.run(after_each=lambda: True)
            watching.check()


@pytest.mark.slow
def test_two_servers(team: Team) -> None:
    ports = [free_port(), free_port()]
    with served(team, ports[0]), served(team, ports[1]):
        answer = httpx.post(f"http://127.0.0.1:{ports[0]}/api/jobs", json={"type": "steps", "payload": {"n": 1}})
        watching = Watching(ports[1:], answer.json()["jobId"])
        watching.run()
        watching.check()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_is_killed(team: Team) -> None:
    """The client comes again, to whoever listens there by then."""
    port = free_port()
    for _ in range(3):
        with served(team, port) as process:
            job_id = add(team.app)
            watching = Watching([port], job_id)
            with connect(f"ws://127.0.0.1:{port}/ws", compression=None) as raw:
                raw.send(json.dumps({"action": "subscribe", "jobId": job_id}))
                watching.heard.append(json.loads(raw.recv(timeout=20)))
                process.kill()
                process.wait()
        with served(team, port):
            watching.run()
            watching.check()


@pytest.mark.slow
def test_the_connection_of_the_hub_is_cut(tmp_path: Path, fresh_url: Callable[[str], str]) -> None:
    """The client notices nothing: it just hears the end. Nobody looks by itself here: only the reconnecting helps."""
    with Team.hire(tmp_path, fresh_url(POSTGRES), CODE, look=3600.0) as team, served(team, port := free_port()):
        team.start()
        for _ in range(5):
            stays(port, add(team.app), lambda: cut_off(team.app))


@pytest.mark.slow
def test_postgresql_is_restarted_under_the_hub(tmp_path: Path, own_postgres: OwnServer) -> None:
    """The server stays, the client stays, and hears the end."""
    with on_own(tmp_path, own_postgres) as (database, team), served(team, port := free_port()):
        stays(port, add(team.app), lambda: database.restart("immediate"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_random_rounds(tmp_path: Path, own_postgres: OwnServer) -> None:
    """Hang up, kill a server, cut the hub off, restart the database: the end always arrives, and nothing old does."""
    ports, troubles = [free_port(), free_port()], Counter[str]()
    with on_own(tmp_path, own_postgres) as (database, team), served(team, ports[0]), ExitStack() as other:
        process = other.enter_context(served(team, ports[1]))
        for _ in range(200):
            if process.poll() is not None:
                other.close()
                process = other.enter_context(served(team, ports[1]))
            watching = Watching(ports, add(team.app))

            def trouble(process: subprocess.Popen[bytes] = process) -> bool:
                kind = random.random()
                if kind < 0.03:
                    troubles["killed"] += 1
                    process.kill()
                elif kind < 0.06:
                    troubles["restarted"] += 1
                    database.restart("immediate" if kind < 0.045 else "fast")
                elif kind < 0.2:
                    troubles["cut"] += 1
                    cut_off(team.app)
                return kind < 0.4

            watching.run(trouble)
            watching.check()
    assert min(troubles[kind] for kind in ("killed", "restarted", "cut")) >= 3, troubles
