"""A secret in a payload, a result or a progress is nowhere to be seen: not over HTTP, not in a log, not on a screen."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from dibs.job import NewJob
from dibs.operations import jobs
from dibs.payload import encode
from tests.apps import on_one
from tests.cli.commands import PROGRAM
from tests.scenarios.teams import Team
from tests.server.test_outages import served
from tests.servers.ports import free_port

SECRET = "hunter2"
CODE = """
@app.task(name="login")
def login(user: str, password: str) -> dict[str, str]:
    current_job().progress(1, 2, "at it")
    return {"user": user, "Password": password}
"""
WRONG = [{"password": SECRET}, {"user": 7, "password": SECRET}]


@pytest.mark.slow
@on_one
def test_a_secret_is_nowhere_to_be_seen(url: str, tmp_path: Path) -> None:
    port = free_port()
    with Team.hire(tmp_path, url, CODE) as team, served(team, port), httpx.Client(timeout=60) as client:
        address = f"http://127.0.0.1:{port}/api/jobs"
        payloads = [{"user": "ada", "password": SECRET}, *WRONG]
        seen = [client.post(address, json={"type": "login", "payload": payload}).text for payload in payloads]
        team.app.engine.run(jobs.add_many([NewJob("login", encode(payload)) for payload in WRONG]))  # as others would
        job_id = json.loads(seen[0])["jobId"]
        with connect(f"ws://127.0.0.1:{port}/ws", compression=None) as raw:
            raw.send(json.dumps({"action": "subscribe", "all": True}))
            team.start("--log-format", "json")
            ended: set[int] = set()
            while len(ended) < 1 + len(WRONG):
                seen.append(str(raw.recv(timeout=60)))
                frame = json.loads(seen[-1])
                ended |= {frame["jobId"]} if frame["status"] in ("SUCCESSFUL", "FAILED") else set()
        seen += [client.get(path).text for path in (address, f"{address}/{job_id}", f"{address}/{job_id}/events")]
        assert json.loads(seen[-2])["result"] == {"user": "ada", "Password": "***"}
        for command in (
            ["jobs", "list", "shop:app"],
            ["jobs", "list", "shop:app", "--json"],
            ["jobs", "show", "shop:app", str(job_id)],
            ["jobs", "show", "shop:app", str(job_id), "--json"],
            ["enqueue", "shop:app", "login", "--payload", json.dumps(WRONG[0])],
        ):
            done = subprocess.run([PROGRAM, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
            seen += [done.stdout, done.stderr]
        seen += [team.logs(), (tmp_path / f"serve-{port}").read_text()]
    for text in seen:
        assert SECRET not in text
