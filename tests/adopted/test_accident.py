"""The accident that this is made against, replayed: four processors on one table, each SELECTs and then UPDATEs.

The same table, adopted, by four workers that are killed all the time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dibs import Dibs
from tests.adopted.tables import Application
from tests.apps import on_one
from tests.scenarios.teams import Team

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TABLE = "create table stickers (id integer primary key, status text not null default 'queued')"
FILES = "create table sticker_files (sticker_id integer not null)"
DUPLICATES = "select sticker_id, count(*) from sticker_files group by sticker_id having count(*) > 1"

NAIVE = """
import sys, time, os
url, count = sys.argv[1], int(sys.argv[2])
if url.startswith("sqlite"):
    import sqlite3
    connection, mark = sqlite3.connect(url.partition(":///")[2], timeout=60, isolation_level=None), "?"
else:
    import psycopg
    connection, mark = psycopg.connect(url, autocommit=True), "%s"
open(f"ready-{os.getpid()}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.001)
while rows := connection.execute("select id from stickers where status = 'queued' order by id limit 5").fetchall():
    for (sticker,) in rows:
        connection.execute(f"update stickers set status = 'started' where id = {mark}", [sticker])
        time.sleep(0.002)  # the work
        connection.execute(f"insert into sticker_files (sticker_id) values ({mark})", [sticker])
        connection.execute(f"update stickers set status = 'completed' where id = {mark}", [sticker])
"""

ADOPTED = """
stickers = app.adopt("stickers", key="id", status="status", max_attempts=100, retry=0.0, poll=0.05,
    states=dict(PENDING="queued", RUNNING="started", SUCCESSFUL="completed", FAILED="failed"))

@stickers.process
async def render(row):
    mark = "?" if app.url.startswith("sqlite") else "%s"
    await asyncio.sleep(0.02)
    async with row.transaction() as connection:
        await connection.execute(f"insert into sticker_files (sticker_id) values ({mark})", [row["id"]])
"""


def fill(application: Application, first: int, count: int) -> None:
    with application.connection() as raw:
        mark = "?" if application.engine.name == "sqlite" else "%s"
        raw.cursor().executemany(
            f"insert into stickers (id) values ({mark})", [(n,) for n in range(first, first + count)]
        )


@pytest.fixture
def application(app: Dibs) -> Application:
    """Whose table it is."""
    application = Application(app.engine)
    application.execute(TABLE)
    application.execute(FILES)
    return application


def test_the_naive_processor_makes_duplicates(url: str, application: Application, tmp_path: Path) -> None:
    fill(application, 1, 200)
    command = [sys.executable, "-c", NAIVE, url, "200"]
    crowd = [subprocess.Popen(command, cwd=tmp_path) for _ in range(4)]
    while len(list(tmp_path.glob("ready-*"))) < 4:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert [each.wait(60) for each in crowd] == [0] * 4
    assert application.execute("select status, count(*) from stickers group by status") == [("completed", 200)]
    assert len(application.execute(DUPLICATES)) > 0


@on_one
def test_the_same_table_adopted_makes_none_though_workers_are_killed(
    url: str, application: Application, tmp_path: Path
) -> None:
    """At least 20 of the kills hit an owner of rows. Every fifth takes its supervisor too, so that nobody but its lease
    frees them."""
    with Team.hire(tmp_path, url, ADOPTED, concurrency=4, lease=2.0, beat=0.3) as team:
        members = [team.start("--log-level", "warning") for _ in range(4)]
        count, killed, alone, deadline = 0, set[int](), set[int](), time.monotonic() + 120
        while len(hit := died_with_rows(application)) < 20:
            assert time.monotonic() < deadline, f"only {len(hit)} of {len(killed)} kills hit an owner"
            if application.execute("select count(*) from stickers where status = 'queued'")[0][0] < 100:
                fill(application, count + 1, 200)
                count += 200
            time.sleep(random.uniform(0.01, 0.1))
            pids = [(pid, member) for member in members for pid in member.children() if pid not in killed]
            for pid, member in [each for each in pids if is_alive(each[0]) and owns(application, each[0])][:1]:
                if len(killed) % 5 == 0:
                    alone.add(pid)
                    member.process.kill()
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                if pid in alone:
                    members[members.index(member)] = team.begin("--log-level", "warning")
        done = [("completed", count)]
        team.until(
            lambda: application.execute("select status, count(*) from stickers group by status") == done,
            "all are completed",
            120,
        )
        assert application.execute(DUPLICATES) == []
        assert application.execute("select count(*) from sticker_files") == [(count,)]
        assert any(f"-{pid}-" in name for name in died_with_rows(application) for pid in alone)


def is_alive(pid: int) -> bool:
    """Killed and not reaped yet, it is not."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def died_with_rows(application: Application) -> set[str]:
    """The workers whose death a row was charged for."""
    own = "dibs_" if application.engine.name == "sqlite" else "dibs."
    parts = [
        f"select cast(failures as text) from {own}{name} where failures is not null" for name in ("jobs", "history")
    ]
    failures = [each for row in application.execute(" union all ".join(parts)) for each in json.loads(row[0])]
    return {each["worker"] for each in failures if each["error"] == "the worker died"}


def owns(application: Application, pid: int) -> bool:
    """Whether this process holds rows at this moment."""
    return any(f"-{pid}-" in name for name in owners(application))


def owners(application: Application) -> list[str]:
    """The workers that hold rows at this moment."""
    own = "dibs_" if application.engine.name == "sqlite" else "dibs."
    rows = application.execute(
        f"select distinct n.name from {own}jobs j join {own}worker_names n on n.id = j.worker >> 20"
        " where j.row_key is not null and j.worker is not null"
    )
    return [row[0] for row in rows]
