"""Everybody who may own a transaction that a job is added in, by name: each opens a connection of their own kind."""

import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.apps import POSTGRES, SQLITE

EFFECT = "insert into effects (n) values (1)"


@dataclass
class Caller:
    """Somebody with a transaction of their own."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


@dataclass
class AsyncCaller:
    """The same in async code."""

    connection: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


def path(url: str) -> str:
    """The file of a SQLite URL."""
    return urlsplit(url).path[1:]


def prepare(url: str) -> None:
    """A table of the caller's own, so that an effect and a job can commit together."""
    with open_raw(url) as raw:
        raw.execute("create table effects (n int)")
        raw.commit()


def count_effects(url: str) -> int:
    """How many effects were committed."""
    with open_raw(url) as raw:
        return int(raw.execute("select count(*) from effects").fetchone()[0])


def open_raw(url: str) -> AbstractContextManager[Any]:
    """A plain connection of the driver."""
    return closing(sqlite3.connect(path(url)) if url.startswith("sqlite") else psycopg.connect(url))


@contextmanager
def by_psycopg(url: str, **options: Any) -> Iterator[Caller]:
    """psycopg, sync."""
    with closing(psycopg.connect(url, **options)) as raw:
        yield Caller(raw, raw.execute, raw.commit, raw.rollback)


@contextmanager
def by_sqlite3(url: str, *, row_factory: Any = None, begin: str | None = None, **options: Any) -> Iterator[Caller]:
    """sqlite3 in one of its ways to begin a transaction."""
    with closing(sqlite3.connect(path(url), **options)) as raw:
        raw.row_factory = row_factory
        if begin:
            raw.execute(begin)
        yield Caller(raw, raw.execute, raw.commit, raw.rollback)


@contextmanager
def sa_engine(url: str) -> Iterator[sa.Engine]:
    """SQLAlchemy's engine on the same database."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def by_sqlalchemy(url: str) -> Iterator[Caller]:
    """A SQLAlchemy Connection."""
    with sa_engine(url) as engine, engine.connect() as it:
        yield Caller(it, lambda sql: it.execute(sa.text(sql)), it.commit, it.rollback)


@contextmanager
def by_session(url: str) -> Iterator[Caller]:
    """A SQLAlchemy Session."""
    with sa_engine(url) as engine, Session(engine) as it:
        yield Caller(it, lambda sql: it.execute(sa.text(sql)), it.commit, it.rollback)


@contextmanager
def by_scoped_session(url: str) -> Iterator[Caller]:
    """A SQLAlchemy scoped_session, as Flask applications hold."""
    with sa_engine(url) as engine:
        it = scoped_session(sessionmaker(engine))
        try:
            yield Caller(it, lambda sql: it.execute(sa.text(sql)), it.commit, it.rollback)
        finally:
            it.remove()


@contextmanager
def by_django(url: str, *, proxy: bool = False) -> Iterator[Caller]:
    """Django's connection, or the proxy that `from django.db import connection` gives."""
    import django  # type: ignore[import-untyped]  # Django has no types, here and below
    from django.conf import settings  # type: ignore[import-untyped]
    from django.db.utils import ConnectionHandler  # type: ignore[import-untyped]
    from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped]

    if not settings.configured:
        settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    handler = ConnectionHandler({"default": django_database(url)})
    it = handler["default"]
    it.set_autocommit(False)
    try:
        yield Caller(ConnectionProxy(handler, "default") if proxy else it, django_execute(it), it.commit, it.rollback)
    finally:
        it.close()


def django_database(url: str) -> dict[str, Any]:
    """A database as Django's settings name it."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path(url)}
    parts = urlsplit(url)
    place = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    return {"ENGINE": "django.db.backends.postgresql", **place}


def django_execute(connection: Any) -> Callable[[str], None]:
    """Execute as Django's users do."""

    def execute(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return execute


@asynccontextmanager
async def by_async_psycopg(url: str, **options: Any) -> AsyncIterator[AsyncCaller]:
    """psycopg, async."""
    raw = await psycopg.AsyncConnection.connect(url, **options)
    try:
        yield AsyncCaller(raw, raw.execute, raw.commit, raw.rollback)
    finally:
        await raw.close()


@asynccontextmanager
async def by_async_sqlalchemy(url: str, *, session: bool = False) -> AsyncIterator[AsyncCaller]:
    """A SQLAlchemy AsyncConnection or AsyncSession."""
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+psycopg://").replace("sqlite://", "sqlite+aiosqlite://")
    )
    try:
        async with AsyncSession(engine) if session else engine.connect() as it:
            yield AsyncCaller(it, lambda sql: it.execute(sa.text(sql)), it.commit, it.rollback)
    finally:
        await engine.dispose()


# Name: (the engine that it works on, how to open it).
CALLERS: dict[str, tuple[str, Callable[[str], AbstractContextManager[Caller]]]] = {
    "psycopg": (POSTGRES, by_psycopg),
    "psycopg-dict-rows": (POSTGRES, lambda url: by_psycopg(url, row_factory=dict_row)),
    "sqlite3": (SQLITE, by_sqlite3),
    "sqlite3-rows": (SQLITE, lambda url: by_sqlite3(url, row_factory=sqlite3.Row)),
    "sqlite3-immediate": (SQLITE, lambda url: by_sqlite3(url, isolation_level="IMMEDIATE")),
    "sqlite3-exclusive": (SQLITE, lambda url: by_sqlite3(url, isolation_level="EXCLUSIVE")),
    "sqlite3-begin": (SQLITE, lambda url: by_sqlite3(url, isolation_level=None, begin="begin")),
    **(
        {"sqlite3-pep249": (SQLITE, lambda url: by_sqlite3(url, autocommit=False))}
        if sys.version_info >= (3, 12)
        else {}
    ),
    **{
        f"{name}-{place}": (place, opened)
        for place in (SQLITE, POSTGRES)
        for name, opened in {
            "sqlalchemy": by_sqlalchemy,
            "session": by_session,
            "scoped-session": by_scoped_session,
            "django": by_django,
            "django-proxy": lambda url: by_django(url, proxy=True),
        }.items()
    },
}

ASYNC_CALLERS: dict[str, tuple[str, Callable[[str], AbstractAsyncContextManager[AsyncCaller]]]] = {
    "psycopg": (POSTGRES, by_async_psycopg),
    "psycopg-dict-rows": (POSTGRES, lambda url: by_async_psycopg(url, row_factory=dict_row)),
    **{
        f"{name}-{place}": (place, opened)
        for place in (SQLITE, POSTGRES)
        for name, opened in {
            "sqlalchemy": by_async_sqlalchemy,
            "session": lambda url: by_async_sqlalchemy(url, session=True),
        }.items()
    },
}
