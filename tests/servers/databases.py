"""A server that is running, seen as a place for databases."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.servers.leash import Leash

FILE_COPY_SINCE = 150000


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
        self.execute(f"create database {quoted(name)} template {quoted(template or 'template0')}{self._strategy()}")
        return name

    def _strategy(self) -> str:
        return ""

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
            self._leave(name)

    def _leave(self, name: str) -> None:
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


class Kept(Databases):
    """The same over one connection that stays open, for many databases in a row. The server must stay, too.

    To drop a database at once would wait a tenth of a second for its clients to be gone. So they are sent away at once,
    and it is dropped when the next one is made.
    """

    def __init__(self, url: str, leash: Leash) -> None:
        super().__init__(url, leash)
        self._connection: psycopg.Connection | None = None
        self._left: list[str] = []

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement outside of any transaction, and return its rows."""
        cursor = self._connected().execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._url, autocommit=True)
        return self._connection

    def _strategy(self) -> str:
        """Copying files takes half the time of writing them to the log, on a server that does not wait for the disk."""
        return " strategy file_copy" if self._connected().info.server_version >= FILE_COPY_SINCE else ""

    def create_database(self, *, template: str | None = None) -> str:
        """Create a database, and drop those that were left."""
        name = super().create_database(template=template)
        while self._left:
            self.drop_database(self._left.pop())
        return name

    def _leave(self, name: str) -> None:
        """Nobody is connected to it any more, and it is dropped soon."""
        self.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
        self._left.append(name)

    def close(self) -> None:
        """Drop what is left, and end the connection."""
        while self._left:
            self.drop_database(self._left.pop())
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def at(url: str, *, database: str) -> str:
    """Return the address of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def quoted(name: str) -> str:
    """Quote an identifier."""
    return sql.Identifier(name).as_string()
