"""A server that is running, seen as a place for databases."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.servers.leash import Leash


class Databases:
    """Creates and drops databases on the server behind a URL, whose user must be allowed to.

    Their names begin alike within one run, so that the end of the run finds what a killed test left behind.
    """

    def __init__(self, url: str, leash: Leash) -> None:
        self._url = url
        self.leash = leash
        self._prefix = leash.folder.name.replace("-", "_") + "_"

    def url(self, database: str | None = None) -> str:
        """Return the address of a database, or of the one that was given with the server."""
        if database is None:
            return self._url
        return at(self._url, database=database)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement outside of any transaction, as an operator would, and return its rows."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self, *, template: str | None = None) -> str:
        """Create a database, empty or as a copy of another that nobody is connected to; return its name."""
        name = self._prefix + secrets.token_hex(5)
        self.execute(f"create database {quoted(name)} template {quoted(template or 'template0')}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, and whoever is connected to it."""
        self.execute(f"drop database if exists {quoted(name)} with (force)")

    @contextlib.contextmanager
    def fresh_database(self, *, template: str | None = None) -> Iterator[str]:
        """Give the URL of a new database; drop it afterwards."""
        name = self.create_database(template=template)
        try:
            yield self.url(name)
        finally:
            self.drop_database(name)

    def template(self, name: str, prepare: Callable[[str], None]) -> str:
        """Return a database to make copies of: created once in a run, and prepared by a function of its URL."""

        def create() -> str:
            database = self.create_database()
            prepare(self.url(database))
            return database

        server = urlsplit(self._url)
        return self.leash.once(f"{name}-{server.hostname}-{server.port}", create)

    def drop_leftovers(self) -> None:
        """Drop every database that this run created and nobody dropped."""
        pattern = self._prefix.replace("_", r"\_") + "%"
        for (name,) in self.execute(f"select datname from pg_database where datname like '{pattern}'"):
            self.drop_database(name)


def at(url: str, *, database: str) -> str:
    """Return the address of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def quoted(name: str) -> str:
    """Quote an identifier."""
    return sql.Identifier(name).as_string()
