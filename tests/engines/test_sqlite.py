"""SQLite connections of our own: what is a transaction by itself, and when the -wal is written back."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dibs.engines.sqlite import connection
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.job import NewJob
from dibs.operations import jobs, workers

JOB = NewJob("noop", b'"%s"' % (b"x" * 1000))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteEngine]:
    """A fresh file that is checkpointed every few commits. Who waits for its lock waits long."""
    monkeypatch.setattr(connection, "CHECKPOINT_PAGES", 60)
    monkeypatch.setattr(connection, "CHECKPOINT_AGAIN", 30)
    with closing(SqliteEngine(str(tmp_path / "jobs.db"), deadline=3600)) as engine:
        engine.migrate()
        yield engine


def add(engine: SqliteEngine, count: int) -> list[int]:
    """So many commits."""
    return [engine.run(jobs.add(JOB)).id for _ in range(count)]


def written_back(engine: SqliteEngine) -> int:
    """Bytes of the file itself. (It is not opened: that would drop SQLite's locks.)"""
    return Path(engine.place.path).stat().st_size


def test_the_wal_is_written_back_now_and_then(engine: SqliteEngine) -> None:
    before = written_back(engine)
    add(engine, 40)
    assert written_back(engine) > before


def test_what_tasks_write_themselves_is_written_back_too(engine: SqliteEngine) -> None:
    before = written_back(engine)
    for number in range(40):
        with engine.transaction() as opened:
            opened.connection.execute(f"create table own_{number} (id integer)")
            opened.commit()
    assert written_back(engine) > before


def test_what_was_committed_stays_so_whatever_becomes_of_a_checkpoint(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    first = add(engine, 1)
    before = written_back(engine)
    with monkeypatch.context() as broken:
        broken.setattr(connection, "connect", full)
        broken.setattr(connection.Place, "autocheckpoint", False)
        ids = first + add(engine, 39)
        assert written_back(engine) == before
    assert [job.id for job in engine.run(jobs.page(jobs.Filter())).jobs] == ids[::-1]
    add(engine, 40)
    assert written_back(engine) > before


@pytest.mark.timeout(20)  # else it waits for the deadline, an hour
def test_a_checkpoint_does_not_wait_for_whoever_writes(engine: SqliteEngine) -> None:
    ours = engine.connection("work")
    with closing(sqlite3.connect(engine.place.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ours.checkpoint()
        other.execute("rollback")
    ours.checkpoint()


@pytest.mark.timeout(20)  # else it waits for ever
def test_a_beat_does_not_wait_behind_what_its_process_adds(engine: SqliteEngine) -> None:
    begun, over, work = threading.Event(), threading.Event(), engine.connection("work")

    def add_for_long() -> None:
        with work.lock:
            begun.set()
            over.wait()

    adding = threading.Thread(target=add_for_long)
    adding.start()
    begun.wait()
    try:
        engine.run_once(workers.beat([], [], steady=True, asking=[]), within=5)
    finally:
        over.set()
        adding.join()


def test_one_job_is_added_in_one_step(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.Place, "autocheckpoint", True)  # or our own may come after it
    said: list[str] = []
    engine.connection("work").raw.set_trace_callback(said.append)
    add(engine, 1)
    two = ["begin", "insert", "select", "commit"]  # where there is no RETURNING
    assert [text.split()[0].lower() for text in said] == (["insert"] if "returning" in engine.place.able else two)


class Recovering(sqlite3.Connection):
    """The first look finds that another process is just reading the -wal anew, for it has opened the file first."""

    looked = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql.startswith("select") and not self.looked:
            self.looked = True
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
            raise error
        return super().execute(sql, parameters)


def test_a_look_waits_for_whoever_opens_the_file(tmp_path: Path) -> None:
    module = ModuleType("recovering")
    module.__dict__.update({name: getattr(sqlite3, name) for name in ("Error", "Connection", "sqlite_version_info")})
    module.__dict__["connect"] = lambda path, **options: sqlite3.connect(path, factory=Recovering, **options)
    with closing(SqliteEngine(str(tmp_path / "jobs.db"), module=module)) as engine:
        assert engine.migrate() == ["0001 initial"]
        assert engine.applied() == [(1, "initial")]
        engine.connection("read").raw.looked = False
        assert engine.run(jobs.page(jobs.Filter())).jobs == []
