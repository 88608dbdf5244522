"""The caller's own connection: a job is added inside anybody's transaction, and exists when that commits.

psycopg (sync, async), SQLAlchemy (Connection, Session and their async forms), Django's connection, sqlite3. Their
errors stay theirs: it is their transaction. No optional package is imported here; a connection is told by its class.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, TypeVar

from dibs.engines.engine import Engine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.errors import ForeignConnection, NotMigrated
from dibs.operations.operation import AsyncExecute, Execute, Operation, Rows, arun, run

T = TypeVar("T")

DRIVERS = {"postgres": ("psycopg", "psycopg_async", "psycopg2"), "sqlite": ("pysqlite", "aiosqlite")}
BEGIN = {"postgres": "begin", "sqlite": "begin immediate"}
ASYNC_SQLALCHEMY = {
    "sqlalchemy.ext.asyncio.engine.AsyncConnection",
    "sqlalchemy.ext.asyncio.session.AsyncSession",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
}
ROUND_SYNC = {*ASYNC_SQLALCHEMY, "dibs.engines.sqlite.transaction.AsyncConnection"}  # a sync one is inside of each


def run_on(engine: Engine, connection: Any, operation: Operation[T]) -> T:
    """Carry an operation over a sync connection that the caller owns."""
    execute, raw = _sync(engine, connection)
    queries = engine.dialect.speak(operation)
    if not _commits_by_itself(raw) or not (operation.atomic or engine.name == "sqlite"):
        return run(execute, queries)
    execute(BEGIN[engine.name], {})
    try:
        result = run(execute, queries)
    except BaseException:
        with suppress(Exception):  # the driver's; what went wrong first is the news
            execute("rollback", {})
        raise
    execute("commit", {})
    return result


async def arun_on(engine: Engine, connection: Any, operation: Operation[T]) -> T:
    """Carry an operation over an async connection that the caller owns; a sync one will do, too."""
    classes = class_names(connection)
    if classes & ROUND_SYNC:
        result: T = await connection.run_sync(lambda bound: run_on(engine, bound, operation))
        return result
    if "psycopg.AsyncConnection" not in classes:
        return run_on(engine, connection, operation)
    _must_be(engine, "postgres", connection)
    execute, queries = _psycopg_async(connection), engine.dialect.speak(operation)
    if not _commits_by_itself(connection) or not operation.atomic:
        return await arun(execute, queries)
    async with connection.transaction():
        return await arun(execute, queries)


def _sync(engine: Engine, connection: Any) -> tuple[Execute, Any]:
    """How to execute on it, and the driver's own connection below."""
    classes = class_names(connection)
    if "psycopg.Connection" in classes:
        _must_be(engine, "postgres", connection)
        return _psycopg(connection), connection
    if "sqlalchemy.engine.base.Connection" in classes:
        return _sqlalchemy(engine, connection)
    if "sqlalchemy.orm.session.Session" in classes:
        return _sqlalchemy(engine, connection.connection())
    if "sqlalchemy.orm.scoping.scoped_session" in classes:
        return _sqlalchemy(engine, connection().connection())
    if "django.utils.connection.ConnectionProxy" in classes:
        return _django(engine, connection._connections[connection._alias])
    if "django.db.backends.base.base.BaseDatabaseWrapper" in classes:
        return _django(engine, connection)
    if any(name.endswith(("sqlite3.Connection", "sqlite3.dbapi2.Connection")) for name in classes):
        return _sqlite(engine, connection)
    if classes & {"psycopg.AsyncConnection", *ROUND_SYNC}:
        raise ForeignConnection(
            "This connection is for async code. Use `await task.using(connection=...).aenqueue(...)`."
        )
    raise ForeignConnection(
        f"I do not know connections of the class {type(connection).__module__}.{type(connection).__qualname__}. "
        "Pass one of psycopg, SQLAlchemy, Django or sqlite3."
    )


def _commits_by_itself(raw: Any) -> bool:
    """Whether each statement would be a transaction of its own."""
    if not hasattr(raw, "in_transaction"):  # psycopg
        return bool(raw.autocommit) and raw.info.transaction_status == 0
    autocommit = getattr(raw, "autocommit", None)  # since Python 3.12, where it may also say "as before"
    return not raw.in_transaction and (autocommit if isinstance(autocommit, bool) else raw.isolation_level is None)


def class_names(connection: Any) -> set[str]:
    """What it is, without importing what it is of."""
    return {f"{cls.__module__}.{cls.__qualname__}" for cls in type(connection).__mro__}


def _must_be(engine: Engine, name: str, connection: Any) -> None:
    if engine.name != name:
        raise ForeignConnection(
            f"This app keeps its jobs in {engine.name}, and the connection is of another kind "
            f"({type(connection).__module__})."
        )


def _psycopg(connection: Any) -> Execute:
    from psycopg.rows import tuple_row

    def execute(sql: str, values: dict[str, Any]) -> Rows:
        with connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(sql, values)
            return cursor.fetchall() if cursor.description else []

    return execute


def _psycopg_async(connection: Any) -> AsyncExecute:
    from psycopg.rows import tuple_row

    async def execute(sql: str, values: dict[str, Any]) -> Rows:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql, values)
            return await cursor.fetchall() if cursor.description else []

    return execute


def _sqlalchemy(engine: Engine, connection: Any) -> tuple[Execute, Any]:
    if connection.dialect.driver not in DRIVERS[engine.name]:
        raise ForeignConnection(
            f"This app keeps its jobs in {engine.name}; a SQLAlchemy connection by {connection.dialect.driver!r} "
            f"cannot carry them. Use one of: {', '.join(DRIVERS[engine.name])}."
        )

    def execute(sql: str, values: Any) -> Rows:
        result = connection.exec_driver_sql(sql, values)
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    raw = connection.connection.driver_connection
    if engine.name == "sqlite":
        _check_file(engine, getattr(raw, "_conn", raw), execute)  # aiosqlite has the real one inside
    return execute, raw


def _django(engine: Engine, connection: Any) -> tuple[Execute, Any]:
    _must_be(engine, {"postgresql": "postgres"}.get(connection.vendor, connection.vendor), connection)

    def execute(sql: str, values: Any) -> Rows:
        with connection.cursor() as cursor:
            if not isinstance(values, dict):  # once for each of many rows
                cursor.executemany(sql, values)
                return []
            cursor.execute(sql, values)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    connection.ensure_connection()
    if engine.name == "sqlite":
        _check_file(engine, connection.connection, execute)
    return execute, connection.connection


def _sqlite(engine: Engine, connection: Any) -> tuple[Execute, Any]:
    _must_be(engine, "sqlite", connection)

    def execute(sql: str, values: Any) -> Rows:
        cursor = connection.cursor()
        cursor.row_factory = None
        try:
            return [tuple(row) for row in cursor.execute(sql, values).fetchall()]
        finally:
            cursor.close()

    _check_file(engine, connection, execute)
    return execute, connection


def _check_file(engine: Engine, raw: Any, execute: Execute) -> None:
    """One SQLite library in a process (two do not see each other's locks), the file that the jobs are in, migrated."""
    assert isinstance(engine, SqliteEngine)
    place = engine.place
    if not isinstance(raw, place.module.Connection):
        raise ForeignConnection(
            f"This connection is of {type(raw).__module__}, and the app uses {place.module.__name__}. "
            "Two SQLite libraries in one process do not see each other's locks and can corrupt the file. "
            "Use one: Dibs(url, sqlite=module)."
        )
    files = [file for _, name, file in execute("pragma database_list", {}) if name == "main"]
    if not files or os.path.realpath(files[0]) != os.path.realpath(place.path):
        raise ForeignConnection(
            f"This connection is to {files[0] if files and files[0] else 'memory'}, and the jobs are in {place.path}. "
            "A transaction cannot span two files: keep the jobs in the application's own file."
        )
    if raw.in_transaction and not execute("select 1 from sqlite_master where name = 'dibs_migrations'", {}):
        raise NotMigrated(
            f"{place.path} has no dibs tables yet, and while your transaction is open they cannot be made. "
            "Call app.migrate() before it begins."
        )
    engine.ready()
