"""The examples of adopted tables, run as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen
from uuid import UUID

import pytest

from dibs import Dibs
from tests.adopted.tables import Application
from tests.apps import on_postgres, on_sqlite
from tests.servers.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 60.0


@contextmanager
def running(url: str, log: Path, *command: str) -> Iterator[None]:
    """A program of the example, ended with SIGTERM; what it says is kept."""
    environment = {**os.environ, "DIBS_URL": url, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])}
    with log.open("ab") as file:
        process = subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(PATIENCE) in (0, -15), log.read_text()


def until(happened: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def answers(url: str) -> bool:
    try:
        with urlopen(url) as answer:  # noqa: S310  # our own
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_processor_inside_a_server(app: Dibs, url: str, tmp_path: Path) -> None:
    application, log, ports = Application(app.engine), tmp_path / "log", [free_port(), free_port()]
    application.execute("create table orders (id integer primary key, status text not null, total integer)")
    for n in range(1, 21):
        application.execute("insert into orders values (%s, 'queued', %s)", [n, 10 * n])
    server = ("uvicorn", "processor_in_server:site", "--port")
    with running(url, log, *server, str(ports[0])), running(url, log, *server, str(ports[1])):
        until(lambda: application.execute("select distinct status from orders") == [("completed",)], log)
        until(lambda: answers(f"http://127.0.0.1:{ports[0]}/"), log)
    said = [line for line in log.read_text().splitlines() if line.startswith("order ")]
    assert sorted(said) == sorted(f"order {n}: {10 * n}" for n in range(1, 21)), "each once, by one of the two"


@on_postgres
def test_the_sticker_product_with_two_replicas(app: Dibs, url: str, tmp_path: Path) -> None:
    application, log = Application(app.engine), tmp_path / "log"
    text = (EXAMPLES / "stickers.py").read_text()
    tables = text[text.index("    create table users") : text.index("`dibs adopt apply")]
    application.execute(tables)
    application.execute("insert into users values (1, 10)")
    applied = subprocess.run(
        [sys.executable, "-m", "dibs", "adopt", "apply", "stickers:app", "--yes"],
        env={**os.environ, "DIBS_URL": url, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert applied.returncode == 0, applied.stderr
    with running(url, log, "dibs", "worker", "stickers:app"), running(url, log, "dibs", "worker", "stickers:app"):
        until(lambda: log.read_text().count("Worker started: ") == 2, log)  # or one would have done it all
        for n in range(40):
            order_sticker(application, n, " " if n % 10 == 0 else f"a cat, number {n}")
        count, unfinished = 40, "select 1 from stickers where status in ('queued', 'started')"
        until(lambda: not application.execute(unfinished), log)
        while (
            len(application.execute("select distinct worker_id from stickers")) < 2
        ):  # the other one has not looked yet
            order_sticker(application, count, "one more cat")
            count += 1
            until(lambda: not application.execute(unfinished), log)
    counts = dict(application.execute("select status, count(*) from stickers group by status"))
    assert counts == {"completed": count - 4, "failed": 4}
    assert application.execute("select credits from users") == [(14,)], "each failure was refunded once"
    twice = "select sticker_id, count(*) from sticker_files group by 1 having count(*) > 1"
    assert application.execute(twice) == []
    assert application.execute("select count(*) from sticker_files") == [(count - 4,)]
    said = log.read_text()
    for (worker,) in application.execute("select distinct worker_id from stickers"):
        assert f"Worker started: {worker}" in said
    assert said.count("Worker started: ") == 2
    first = str(UUID(int=2))
    (worker,) = application.execute("select worker_id from stickers where id = %s", [first])[0]
    assert f"Job stickers {first} claimed by {worker}" in said
    assert f"Job stickers {first} completed in 0." in said


def order_sticker(application: Application, n: int, prompt: str) -> None:
    insert = "insert into stickers (id, user_id, prompt) values (%s, 1, %s)"
    application.execute(insert, [str(UUID(int=n + 1)), prompt])


@on_sqlite
def test_code_executions_on_a_file(app: Dibs, url: str, tmp_path: Path) -> None:
    application, log = Application(app.engine), tmp_path / "log"
    text = (EXAMPLES / "executions.py").read_text()
    application.execute(text[text.index("    create table executions") : text.index('"""\n\nimport')])
    add = "insert into executions (code, priority) values (%s, %s)"
    application.execute(add, ["print(6 * 7)", 0])
    application.execute(add, ["raise SystemExit('no')", 9])
    application.execute(add, ["1 / 0", 5])
    with running(url, log, "dibs", "worker", "executions:app"):
        until(lambda: not application.execute("select 1 from executions where status in ('pending', 'running')"), log)
    assert re.findall(r"Job executions (\d+) claimed", log.read_text()) == ["2", "3", "1"], "priority first"
    rows = application.execute("select status, output, error from executions order by id")
    assert rows == [
        ("done", "42\n", None),
        ("failed", None, "RuntimeError: no"),
        ("failed", None, "RuntimeError: ZeroDivisionError: division by zero"),
    ]
