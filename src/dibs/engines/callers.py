"""The caller's own connection: a job is added inside anybody's transaction, and exists when that commits.

psycopg (sync, async), SQLAlchemy (Connection, Session and their async forms), Django's connection, sqlite3. Their
errors stay theirs: it is their transaction. No optional package is imported here; a connection is told by its class.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from dibs.engines.engine import Engine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.errors import ForeignConnection
from dibs.operations.operation import AsyncExecute, Execute, Operation, Rows, arun, run

T = TypeVar("T")

DRIVERS = {"postgres": ("psycopg", "psycopg_async", "psycopg2"), "sqlite": ("pysqlite", "aiosqlite")}


def run_on(engine: Engine, connection: Any, operation: Operation[T]) -> T:
    """Carry an operation over a sync connection that the caller owns."""
    return run(_sync(engine, connection), engine.dialect.speak(operation))


async def arun_on(engine: Engine, connection: Any, operation: Operation[T]) -> T:
    """Carry an operation over an async connection that the caller owns; a sync one will do, too."""
    execute = _async(engine, connection)
    if execute is None:
        return run_on(engine, connection, operation)
    return await arun(execute, engine.dialect.speak(operation))


def _sync(engine: Engine, connection: Any) -> Execute:
    classes = _classes(connection)
    if "psycopg.Connection" in classes:
        _must_be(engine, "postgres", connection)
        return _psycopg(connection)
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
    if _is_async(classes):
        raise ForeignConnection(
            "This connection is for async code. Use `await task.using(connection=...).aenqueue(...)`."
        )
    raise ForeignConnection(
        f"I do not know connections of the class {type(connection).__module__}.{type(connection).__qualname__}. "
        "Pass one of psycopg, SQLAlchemy, Django or sqlite3."
    )


def _async(engine: Engine, connection: Any) -> AsyncExecute | None:
    classes = _classes(connection)
    if "psycopg.AsyncConnection" in classes:
        _must_be(engine, "postgres", connection)
        return _psycopg_async(connection)
    if "sqlalchemy.ext.asyncio.engine.AsyncConnection" in classes:
        return _sqlalchemy_async(engine, connection.run_sync)
    if "sqlalchemy.ext.asyncio.session.AsyncSession" in classes:
        return _sqlalchemy_async(engine, connection.run_sync)
    return None


def _classes(connection: Any) -> set[str]:
    return {f"{cls.__module__}.{cls.__qualname__}" for cls in type(connection).__mro__}


def _is_async(classes: set[str]) -> bool:
    return bool(
        classes
        & {
            "psycopg.AsyncConnection",
            "sqlalchemy.ext.asyncio.engine.AsyncConnection",
            "sqlalchemy.ext.asyncio.session.AsyncSession",
        }
    )


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


def _sqlalchemy(engine: Engine, connection: Any) -> Execute:
    if connection.dialect.driver not in DRIVERS[engine.name]:
        raise ForeignConnection(
            f"This app keeps its jobs in {engine.name}; a SQLAlchemy connection by {connection.dialect.driver!r} "
            f"cannot carry them. Use one of: {', '.join(DRIVERS[engine.name])}."
        )
    if connection.dialect.driver == "pysqlite":
        _check_file(engine, connection.connection.dbapi_connection)

    def execute(sql: str, values: dict[str, Any]) -> Rows:
        result = connection.exec_driver_sql(sql, values)
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    return execute


def _sqlalchemy_async(engine: Engine, run_sync: Callable[..., Any]) -> AsyncExecute:
    def carry(bound: Any, sql: str, values: dict[str, Any]) -> Rows:
        return _sqlalchemy(engine, bound.connection() if hasattr(bound, "get_bind") else bound)(sql, values)

    async def execute(sql: str, values: dict[str, Any]) -> Rows:
        rows: Rows = await run_sync(carry, sql, values)
        return rows

    return execute


def _django(engine: Engine, connection: Any) -> Execute:
    _must_be(engine, {"postgresql": "postgres"}.get(connection.vendor, connection.vendor), connection)
    if engine.name == "sqlite":
        connection.ensure_connection()
        _check_file(engine, connection.connection)

    def execute(sql: str, values: dict[str, Any]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    return execute


def _sqlite(engine: Engine, connection: Any) -> Execute:
    _must_be(engine, "sqlite", connection)
    _check_file(engine, connection)

    def execute(sql: str, values: dict[str, Any]) -> Rows:
        cursor = connection.cursor()
        cursor.row_factory = None
        try:
            return [tuple(row) for row in cursor.execute(sql, values).fetchall()]
        finally:
            cursor.close()

    return execute


def _check_file(engine: Engine, connection: Any) -> None:
    """One SQLite library in a process (two do not see each other's locks), and the file that the jobs are in."""
    assert isinstance(engine, SqliteEngine)
    place = engine.place
    if not isinstance(connection, place.module.Connection):
        raise ForeignConnection(
            f"This connection is of {type(connection).__module__}, and the app uses {place.module.__name__}. "
            "Two SQLite libraries in one process do not see each other's locks and can corrupt the file. "
            "Use one: Dibs(url, sqlite=module)."
        )
    cursor = connection.cursor()
    cursor.row_factory = None
    files = [row[2] for row in cursor.execute("pragma database_list").fetchall() if row[1] == "main"]
    cursor.close()
    if not files or os.path.realpath(files[0]) != os.path.realpath(place.path):
        raise ForeignConnection(
            f"This connection is to {files[0] if files else 'memory'}, and the jobs are in {place.path}. "
            "A transaction cannot span two files: keep the jobs in the application's own file."
        )
