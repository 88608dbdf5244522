"""Every released schema, with jobs in every state, can be migrated forward, and its jobs go on."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dibs.engines import migrate
from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.job import JobState, NewJob, WorkerId
from dibs.operations import batches, jobs, workers
from tests.actors import Actors
from tests.dumps.population import as_json
from tests.engines import POSTGRES, SQLITE, Engines, classic, params

DUMPS = sorted(Path(__file__).parent.glob("[0-9][0-9][0-9][0-9]"))

# Partitions come and go with the days.
POSTGRES_SCHEMA = """
select 'column', c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' '
  || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || coalesce(a.attcollation::regcollation::text, '')
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relnamespace = 'dibs'::regnamespace and c.relkind in ('r', 'p', 'v', 'i', 'I') and c.relname !~ 'history_\\d'
union all
select 'relation', relname, relkind::text || coalesce(reloptions::text, '')
from pg_class where relnamespace = 'dibs'::regnamespace and relname !~ 'history_\\d'
union all
select 'index', indexname, indexdef from pg_indexes where schemaname = 'dibs' and indexname !~ 'history_\\d'
union all
select 'view', viewname, definition from pg_views where schemaname = 'dibs'
union all
select 'function', proname, pg_get_functiondef(oid) from pg_proc where pronamespace = 'dibs'::regnamespace
order by 1, 2, 3"""
SQLITE_SCHEMA = "select type, name, sql from sqlite_master where name like 'dibs_%' order by 1, 2"


@dataclass(frozen=True)
class Loaded:
    """A dump in a database of its own."""

    engine: Engine
    number: int
    shown: dict[str, dict[str, Any]]  # each job as it looked when the dump was made, by its queue

    @property
    def actors(self) -> Actors:
        """Those who use it now."""
        return Actors(self.engine)


@contextmanager
def loaded(dump: Path, kind: str, engines: Engines) -> Iterator[Loaded]:
    name = "sqlite" if kind in SQLITE else "postgres"
    text, shown = (dump / f"{name}.sql").read_text(), json.loads((dump / f"{name}.json").read_text())
    if name == "sqlite":
        path = engines.folder / "loaded.db"
        with closing(sqlite3.connect(path)) as file:
            file.executescript(text)
        with closing(SqliteEngine(str(path), module=classic() if kind == "sqlite-classic" else sqlite3)) as engine:
            yield Loaded(engine, int(dump.name), shown)
        return
    with engines.servers[kind].fresh_database() as url:
        with psycopg.connect(url) as connection:
            connection.execute(text.encode())
        with closing(PostgresEngine(url)) as postgres:
            yield Loaded(postgres, int(dump.name), shown)


@pytest.fixture(params=DUMPS, ids=lambda dump: dump.name)
def dump(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(params=params(*SQLITE, *POSTGRES))
def old(request: pytest.FixtureRequest, dump: Path, engines: Engines) -> Iterator[Loaded]:
    """A database as that release left it."""
    with loaded(dump, request.param, engines) as database:
        yield database


def schema(engine: Engine) -> list[tuple[Any, ...]]:
    return Actors(engine).sql(POSTGRES_SCHEMA if engine.name == "postgres" else SQLITE_SCHEMA)


def test_there_is_a_dump_of_each_schema() -> None:
    assert [int(dump.name) for dump in DUMPS] == [each.number for each in migrate.migrations("postgres")]


def test_an_old_database_becomes_like_a_new_one(old: Loaded, request: pytest.FixtureRequest, engines: Engines) -> None:
    later = [each.title for each in migrate.migrations(old.engine.name) if each.number > old.number]
    assert old.engine.migrate() == later
    with engines.open(request.node.callspec.params["old"]) as new:
        new.migrate()
        assert schema(old.engine) == schema(new)


def test_every_job_is_as_it_was(old: Loaded) -> None:
    old.engine.migrate()
    assert {queue: as_json(old.actors.get(job["id"])) for queue, job in old.shown.items()} == old.shown


def test_every_job_goes_on(old: Loaded) -> None:
    old.engine.migrate()
    gone = [WorkerId(each.id) for each in old.engine.run(workers.list_workers())]
    actors, worker = old.actors, old.actors.worker()
    old.engine.run(workers.recover(known=gone))
    for queue in ("failed", "cancelled"):
        old.engine.run(jobs.retry(old.shown[queue]["id"]))
    actors.make_due()
    for queue, job in old.shown.items():
        for claimed in worker.claim(1, queue):
            assert claimed.id == job["id"]
            worker.succeed(claimed)
    states = {queue: actors.state(job["id"]) for queue, job in old.shown.items()}
    assert states == dict.fromkeys(old.shown, JobState.SUCCESSFUL) | {"paused": JobState.PENDING}
    actors.resume("paused")
    assert [job.id for job in worker.claim(1, "paused")] == [old.shown["paused"]["id"]]


def test_batches_go_on(old: Loaded) -> None:
    old.engine.migrate()
    actors, worker = old.actors, old.actors.worker()
    (batch,) = old.engine.run(batches.page()).batches
    assert (batch.name, batch.total, batch.successful, batch.state) == ("batched", 2, 1, "CLOSED")
    worker.succeed(*worker.claim(1, "batched"))
    assert old.engine.run(batches.progress(batch.id)).state == "FINISHED"
    assert [actors.get(job.id).payload for job in worker.claim(5, "hooks")] == [{"batch_id": batch.id}]


def test_keys_and_ids_go_on(old: Loaded) -> None:
    old.engine.migrate()
    held, held_on, free = (
        old.engine.run(jobs.add_keyed([NewJob("task", unique_key=key)]))[0] for key in ("held", "held on", "free")
    )
    assert (held.id, held.created) == (old.shown["keyed"]["id"], False)
    assert (held_on.id, held_on.created) == (old.shown["successful for long"]["id"], False)
    assert free.created
    assert free.id > max(job["id"] for job in old.shown.values())
