"""A worker inside a web server: real uvicorn, real gunicorn; jobs are run, and a stop is polite."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from dibs import Dibs
from dibs.operations.workers import list_workers

PATIENCE = 60.0
STARLETTE = """
import contextlib
from dibs import Dibs
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

jobs = Dibs({url!r})

@jobs.task(name="double")
async def double(n: int) -> int:
    return 2 * n

@contextlib.asynccontextmanager
async def lifespan(app):
    async with jobs.running(concurrency=2):
        yield

async def enqueue(request):
    return PlainTextResponse(str((await double.aenqueue(n=21)).id))

app = Starlette(routes=[Route("/", enqueue)], lifespan=lifespan)
"""
FLASK = """
from dibs import Dibs
from flask import Flask

jobs = Dibs({url!r})

@jobs.task(name="double")
def double(n: int) -> int:
    return 2 * n

app = Flask(__name__)

@app.get("/")
def enqueue():
    return str(double.enqueue(n=21).id)
"""
GUNICORN = """
def post_worker_init(worker):
    from shop import jobs
    jobs.start(concurrency=2)

def worker_exit(server, worker):
    from shop import jobs
    jobs.stop()
"""
ADDRESS = re.compile(r"(?:Listening at|running on): ?(http://127\.0\.0\.1:\d+)|running on (http://127\.0\.0\.1:\d+)")


@contextmanager
def serving(folder: Path, *command: str) -> Iterator[str]:
    """A server in its own process, and its address; at the end it is told to stop, and does."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := ADDRESS.search(line):
                break
        else:
            raise AssertionError("".join(said))
        rest = threading.Thread(target=lambda: said.extend(process.stderr or ()))
        rest.start()
        yield found[1] or found[2]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM), "".join(said)
        rest.join()
        assert "Traceback" not in "".join(said)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def enqueued(app: Dibs, address: str) -> None:
    """A job that the server was asked for is run by the worker inside it."""
    with urlopen(address, timeout=PATIENCE) as answer:  # noqa: S310  # our own server
        job_id = int(answer.read())
    assert app.join(job_id, PATIENCE).result == 42


@pytest.mark.slow
def test_in_the_lifespan_of_an_async_server(tmp_path: Path, url: str, app: Dibs) -> None:
    (tmp_path / "shop.py").write_text(STARLETTE.format(url=url))
    with serving(tmp_path, "uvicorn", "shop:app", "--port", "0") as address:
        enqueued(app, address)
        assert len(app.engine.run(list_workers())) > 0
    assert app.engine.run(list_workers()) == []


@pytest.mark.slow
@pytest.mark.parametrize("preload", [False, True], ids=["", "preload"])
def test_in_each_child_of_gunicorn(tmp_path: Path, url: str, app: Dibs, preload: bool) -> None:
    (tmp_path / "shop.py").write_text(FLASK.format(url=url))
    (tmp_path / "gunicorn.conf.py").write_text(GUNICORN)
    options = ["--preload"] if preload else []
    with serving(tmp_path, "gunicorn", "shop:app", "--bind", "127.0.0.1:0", "--workers", "2", *options) as address:
        for _ in range(6):
            enqueued(app, address)
    assert app.engine.run(list_workers()) == []
