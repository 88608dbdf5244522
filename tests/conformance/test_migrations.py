"""Migrations: the same on both engines, each once, from any number of processes, and printable."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dibs.engines import migrate
from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.errors import DatabaseError, NewerDatabase, NotMigrated
from dibs.operations import queues
from tests.actors import Actors
from tests.conformance.elsewhere import another
from tests.conformance.kinds import on_files, on_servers
from tests.conformance.migrators import COUNT, migrate_at_once

EVERYTHING = [migration.title for migration in migrate.migrations("sqlite")]

POSTGRES_SHAPE = """
select 'column', c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod)
  || coalesce(' ' || pg_get_expr(d.adbin, d.adrelid), '')
  || case when a.attnotnull then ' not null' else '' end || coalesce(' ' || l.collname, '')
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum left join pg_collation l on l.oid = a.attcollation
where c.relnamespace = 'dibs'::regnamespace and c.relkind in ('r', 'p', 'v')
union all
select c.relkind::text, c.relname,
  coalesce(array_to_string(c.reloptions, ' '), '') || coalesce(pg_get_expr(c.relpartbound, c.oid), '')
from pg_class c where c.relnamespace = 'dibs'::regnamespace
union all
select 'index', indexname, indexdef from pg_indexes where schemaname = 'dibs'
union all
select 'view', viewname, definition from pg_views where schemaname = 'dibs'
union all
select 'function', p.proname, pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = 'dibs'::regnamespace
order by 1, 2, 3
"""
FUTURE = """insert into dibs.migrations (number, name, applied_at)
select 9999, 'future', applied_at from dibs.migrations"""
SQLITE_SHAPE = "select type, name, sql from sqlite_master order by 1, 2"


@pytest.fixture
def blank(engine: Engine) -> Iterator[Engine]:
    """An engine on a database that was never migrated."""
    with closing(blanked(engine)) as fresh:
        yield fresh


def blanked(engine: Engine) -> Engine:
    """The same database as it was before its first migration (of a file: another file)."""
    match engine:
        case PostgresEngine():
            execute_script(engine, "drop schema dibs cascade")
            return another(engine)
        case SqliteEngine():
            return SqliteEngine(engine.place.path + ".blank", module=engine.place.module)
    raise AssertionError(engine)


def query(engine: Engine, text: str) -> list[Any]:
    match engine:
        case PostgresEngine():
            with closing(psycopg.connect(engine.server.url, autocommit=True)) as raw:
                return raw.execute(text.encode()).fetchall()
        case SqliteEngine():
            with closing(sqlite3.connect(engine.place.path)) as file:
                return file.execute(text).fetchall()
    raise AssertionError(engine)


def shape(engine: Engine) -> list[Any]:
    """All that the database knows about our tables."""
    return query(engine, POSTGRES_SHAPE if isinstance(engine, PostgresEngine) else SQLITE_SHAPE)


def execute_script(engine: Engine, text: str) -> None:
    """As people would, with psql or the sqlite3 shell."""
    match engine:
        case PostgresEngine():
            with closing(psycopg.connect(engine.server.url, autocommit=True)) as raw:
                raw.execute(text.encode())
        case SqliteEngine():
            with closing(sqlite3.connect(engine.place.path)) as file:
                file.executescript(text)


def works(engine: Engine) -> bool:
    actors = Actors(engine)
    actors.add(unique_key="k")
    worker = actors.worker()
    return not worker.succeed(*worker.claim()).lost


def test_both_engines_have_the_same_migrations() -> None:
    postgres, sqlite = migrate.migrations("postgres"), migrate.migrations("sqlite")
    assert [(one.number, one.name) for one in postgres] == [(one.number, one.name) for one in sqlite]
    assert [one.number for one in postgres] == list(range(1, len(postgres) + 1))


def test_a_blank_database_is_migrated(blank: Engine) -> None:
    assert blank.applied() == []
    assert blank.migrate() == EVERYTHING
    assert [f"{number:04} {name}" for number, name in blank.applied()] == EVERYTHING
    assert works(blank)


def test_migrating_again_changes_nothing(blank: Engine) -> None:
    blank.migrate()
    assert works(blank)
    before = shape(blank)
    assert blank.migrate() == []
    assert another(blank).migrate() == []
    assert shape(blank) == before


@pytest.mark.slow
def test_ten_processes_migrate_at_once(blank: Engine) -> None:
    did = migrate_at_once(blank)
    assert sorted(did) == [[]] * (COUNT - 1) + [EVERYTHING]
    assert works(blank)


def test_the_printed_script_builds_the_same(engine: Engine) -> None:
    engine.migrate()
    migrated = shape(engine)
    with closing(blanked(engine)) as blank:
        execute_script(blank, migrate.script(blank.name, blank.dialect, "dibs"))
        assert shape(blank) == migrated
        assert [f"{number:04} {name}" for number, name in blank.applied()] == EVERYTHING
        assert blank.migrate() == []
        assert works(blank)


def test_a_newer_database_is_refused(engine: Engine) -> None:
    Actors(engine).sql(FUTURE)
    old = another(engine)
    with pytest.raises(NewerDatabase, match="Upgrade dibs"):
        old.run(queues.names())
    with pytest.raises(NewerDatabase, match="Upgrade dibs"):
        old.migrate()
    old.close()


async def test_a_newer_database_is_refused_in_async_code(engine: Engine) -> None:
    Actors(engine).sql(FUTURE)
    old = another(engine)
    with pytest.raises(NewerDatabase):
        await old.arun(queues.names())
    await old.aclose()


@on_servers
def test_a_server_that_was_not_migrated_is_refused(blank: Engine) -> None:
    with pytest.raises(NotMigrated, match="dibs db migrate"):
        blank.run(queues.names())
    assert blank.applied() == []
    blank.migrate()
    assert blank.run(queues.names()) == []


@on_servers
async def test_a_server_that_was_not_migrated_is_refused_in_async_code(blank: Engine) -> None:
    with pytest.raises(NotMigrated, match="dibs db migrate"):
        await blank.arun(queues.names())
    await blank.aclose()


@on_servers
def test_a_schema_of_another_name_is_another_place(engine: Engine) -> None:
    other = PostgresEngine(engine.server.url, schema="Other_1")  # type: ignore[attr-defined]  # a server has a URL
    assert other.migrate() == EVERYTHING
    assert works(other)
    assert engine.run(queues.names()) == []
    other.close()


@on_files
def test_a_file_migrates_itself_on_first_use(blank: Engine) -> None:
    assert blank.run(queues.names()) == []
    assert [f"{number:04} {name}" for number, name in blank.applied()] == EVERYTHING


def test_a_migration_that_breaks_leaves_nothing(blank: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = migrate.migrations

    def with_a_broken_one(engine: str) -> list[migrate.Migration]:
        return [
            *real(engine),
            migrate.Migration(9000, "broken", "create table dibs.half (id int);\nselect broken from nowhere;\n"),
        ]

    monkeypatch.setattr(migrate, "migrations", with_a_broken_one)
    with pytest.raises(DatabaseError):
        blank.migrate()
    assert blank.applied() == []
    monkeypatch.undo()
    assert blank.migrate() == EVERYTHING
