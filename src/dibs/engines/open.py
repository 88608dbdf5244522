"""From a URL to an engine: `sqlite:///relative`, `sqlite:////absolute`, or any URL that libpq takes."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
from urllib.parse import parse_qsl, unquote, urlsplit

from dibs.config import Settings
from dibs.engines.engine import Engine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.errors import ConfigError, MissingDriver, UnknownScheme

SYNCHRONOUS = ("full", "normal")


def open_engine(url: str, settings: Settings) -> Engine:
    """The engine for a database; nothing is opened yet."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError(f"{url!r} is not a database URL. Use sqlite:///file.db or postgresql://user@host/database.")
    try:
        match scheme.lower():
            case "sqlite":
                return _sqlite(url, settings)
            case "postgresql" | "postgres" | "postgresql+psycopg":
                return _postgres("postgresql" + url[len(scheme) :], settings)
            case _:
                raise UnknownScheme(scheme)
    except ValueError as error:  # urlsplit's
        raise ConfigError(f"The database URL cannot be read: {error}.") from None


def _sqlite(url: str, settings: Settings) -> Engine:
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(
            f"{url!r}: a SQLite URL has three slashes (sqlite:///relative) or four (sqlite:////absolute)."
        )
    path = unquote(parts.path[1:])
    if path in ("", ":memory:"):
        raise ConfigError(
            "A database in memory belongs to one connection, so nothing could be shared. Name a file: sqlite:///dibs.db"
        )
    options = dict(parse_qsl(parts.query))
    synchronous = options.pop("synchronous", "full").lower()
    network = options.pop("network", "refuse")
    if synchronous not in SYNCHRONOUS or network not in ("allow", "refuse") or options:
        raise ConfigError(f"{url!r}: after the question mark I know synchronous=full|normal and network=allow.")
    return SqliteEngine(
        os.path.realpath(path),  # where SQLite keeps the -wal; the same when the program changes its directory later
        module=settings.sqlite or sqlite3,
        synchronous=synchronous,
        network=network == "allow",
        deadline=settings.deadline,
    )


def _postgres(url: str, settings: Settings) -> Engine:
    if importlib.util.find_spec("psycopg") is None:
        raise MissingDriver("psycopg", "postgres")
    try:
        from dibs.engines.postgres.engine import PostgresEngine
    except ImportError as error:  # psycopg is there, and finds no libpq
        raise MissingDriver("psycopg", "postgres", str(error)) from error

    return PostgresEngine(url, schema=settings.schema, listen_url=settings.listen_url, deadline=settings.deadline)
