"""The examples in other languages, run as they are: a worker in Node, a client of Node's `ws`, a page in a browser."""

import functools
import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from tests.apps import on_file_first, on_one
from tests.scenarios.teams import Team
from tests.server.serving import Serving, serving
from tests.server.test_outages import add, served, team
from tests.servers.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENT = """
import WebSocket from "ws";
const socket = new WebSocket(process.argv[2]);
socket.on("open", () => socket.send(JSON.stringify({ action: "subscribe", jobId: Number(process.argv[3]) })));
socket.on("message", (data) => {
  console.log(data.toString());
  if (JSON.parse(data).status === "SUCCESSFUL") {
    socket.send(JSON.stringify({ action: "unsubscribe", jobId: Number(process.argv[3]) }));
    socket.close();
  }
});
"""

__all__ = ["team"]  # the fixture


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    app = Dibs(url, lease=60.0)
    yield app
    app.close()


@on_one
@pytest.mark.system("node")
def test_a_worker_in_node(app: Dibs) -> None:
    node = shutil.which("node")
    assert node is not None
    assert len((EXAMPLES / "node_worker.mjs").read_text().splitlines()) < 60
    with serving(app, unknown_tasks=True) as server, server.client() as client, server.socket() as ear:
        job = {"type": "greet", "queue": "node", "payload": {"name": "Ada"}}
        other = client.post("/api/jobs", json={"type": "dance", "queue": "node"}).json()["jobId"]
        job_id = client.post("/api/jobs", json=job).json()["jobId"]
        ear.say(action="subscribe", jobId=job_id)
        worker = subprocess.Popen([node, EXAMPLES / "node_worker.mjs"], env={"DIBS_SERVER": server.address})
        try:
            ear.until("SUCCESSFUL")
            done = client.get(f"/api/jobs/{job_id}").json()
            assert (done["result"], done["progress"]) == ("hello Ada", {"greeting": "Ada"})
            left = client.get(f"/api/jobs/{other}").json()
            assert (left["status"], left["attempts"], left["version"]) == ("PENDING", 0, 2)  # taken once
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0


@pytest.mark.slow
@on_one
@pytest.mark.system("node")
def test_the_conversation_with_a_client_of_node(team: Team, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    assert node is not None
    assert npm is not None
    (tmp_path / "client.mjs").write_text(CLIENT)
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "ws"], cwd=tmp_path, check=True, capture_output=True)
    port = free_port()
    with served(team, port):
        job_id = add(team.app)
        done = subprocess.run(
            [node, "client.mjs", f"ws://127.0.0.1:{port}", str(job_id)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
    frames = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert frames[-1].items() >= {"jobId": job_id, "status": "SUCCESSFUL", "attempts": 1, "error": None}.items()
    assert [frame["version"] for frame in frames] == sorted({frame["version"] for frame in frames})


@contextmanager
def pages() -> Iterator[str]:
    """The examples, served as plain files from an origin of their own."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None: ...

    site = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(EXAMPLES)))
    thread = threading.Thread(target=site.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{site.server_address[1]}"
    finally:
        site.shutdown()
        thread.join()
        site.server_close()


@contextmanager
def browser() -> Iterator[Any]:
    """A page in a real browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield chromium.new_page()
        finally:
            chromium.close()


@pytest.mark.slow
@on_file_first
@pytest.mark.system("chromium")
def test_a_page_watches_a_job(app: Dibs) -> None:
    """Its bar moves; it comes again by itself when the server was away; a token for that job is all that it has."""

    @app.task(name="bake", queue="node")
    def bake() -> None: ...

    job = bake.enqueue()
    token = app.subscribe_token(job.id)
    with pages() as site, browser() as page:
        port = free_port()
        options = {"local": False, "origins": [site], "unknown_tasks": True}
        with serving(app, port=port, **options) as server:
            page.goto(f"{site}/watch.html?server=ws://127.0.0.1:{port}/ws&job={job.id}&token={token}")
            page.wait_for_function("document.getElementById('status').textContent === 'PENDING'")
            work = access(app, server)
            (claimed,) = work.post("/api/claims", json={"queues": ["node"]}).json()["jobs"]
            own = f"/api/claims/{claimed['lease']}"
            work.post(f"{own}/progress", json={"progress": {"done": 1, "total": 4}})
            page.wait_for_function("document.getElementById('bar').value === 0.25")
            work.close()
        page.wait_for_function("document.getElementById('status').className === 'offline'")
        with serving(app, port=port, **options) as server:
            work = access(app, server)
            work.post(f"{own}/progress", json={"progress": {"done": 3, "total": 4}})
            page.wait_for_function("document.getElementById('bar').value === 0.75")
            work.post(f"{own}/complete", json={})
            page.wait_for_function("document.getElementById('status').textContent === 'SUCCESSFUL'")
            page.wait_for_function("document.getElementById('bar').value === 1")
            work.close()


def access(app: Dibs, server: Serving) -> Any:
    from tests.server.test_access import token

    return server.client(token(app, "work", name=f"worker {server.port} {id(server)}"))


POST = """
async (address) => {
  const said = {};
  for (const type of ["application/json", "text/plain", "application/x-www-form-urlencoded"])
    for (const mode of ["cors", "no-cors"])
      try {
        const answer = await fetch(`${address}/api/jobs`, { method: "POST", mode, headers: { "Content-Type": type },
          body: JSON.stringify({ type: "double", payload: { n: 1 } }) });
        said[type + mode] = answer.ok;
      } catch (error) { said[type + mode] = false; }
  return said;
}
"""
OPEN = """
(address) => new Promise((done) => {
  const socket = new WebSocket(address);
  socket.onopen = () => done("open");
  socket.onerror = () => done("refused");
})
"""


@pytest.mark.slow
@on_file_first
@pytest.mark.system("chromium")
def test_a_page_of_another_origin_can_do_nothing(app: Dibs) -> None:
    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    with serving(app) as server, pages() as site, browser() as page, server.client() as client:
        page.goto(f"{site}/watch.html")
        for host in ("127.0.0.1", "localhost"):
            assert set(page.evaluate(POST, f"http://{host}:{server.port}").values()) == {False}
            assert page.evaluate(OPEN, f"ws://{host}:{server.port}/ws") == "refused"
        assert client.get("/api/jobs").json()["jobs"] == []
        page.goto(f"{server.address}/docs")
        assert (
            page.evaluate(OPEN, f"ws://127.0.0.1:{server.port}/ws") != "open"
        )  # the policy of that page allows nothing
        assert page.title() == "dibs API"
