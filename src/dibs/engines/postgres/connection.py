"""PostgreSQL connections of our own: how they are opened, how long they wait, how JSON comes back.

Every wait has an end: a server may accept connections while its commits hang.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import psycopg
from psycopg import AsyncConnection, Connection, pq
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from dibs.engines.dialect import Dialect
from dibs.engines.postgres.errors import TimedOut, translate, translate_connect
from dibs.engines.postgres.prepared import Statements
from dibs.errors import ConfigError
from dibs.operations.operation import Operation, Rows, arun, run

T = TypeVar("T")

CONNECT_TIMEOUT = 10
INTERVAL = 0.1
LOCAL_SETTINGS = "set local jit = off"  # compiling a look-up takes longer than running it


class RawText(Loader):
    """JSON as it came, for a decoder that checks types while it reads."""

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class RawBinary(Loader):
    """The same in the binary format, whose first byte is a version."""

    format = pq.Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)[1:]


def _bounded(generator: Any, seconds: float) -> Generator[Any, Any, Any]:
    """psycopg's waiting, with an end. It is resumed every INTERVAL at the latest."""
    until = time.monotonic() + seconds
    ready = None
    while True:
        try:
            wanted = generator.send(ready)
        except StopIteration as end:
            return end.value
        ready = yield wanted
        if not ready and time.monotonic() > until:
            generator.close()
            raise TimedOut(f"no answer within {seconds:g} s")


class PatientConnection(Connection[Any]):
    """A sync connection whose every wait ends."""

    patience = 30.0
    hand: Any  # its one cursor, for what is not prepared
    statements: Statements

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_bounded(gen, self.patience), *args, **kwargs)

    def ask(self, sql: str, values: Any) -> Rows:
        """Execute one of our statements."""
        return super().wait(self.statements.ask(sql, values, self.patience))

    def by_hand(self, sql: str, values: Any) -> Rows:
        """Likewise, unprepared: behind a pooler."""
        self.hand.execute(sql, values)
        return self.hand.fetchall() if has_rows(self.hand) else []


class PatientAsyncConnection(AsyncConnection[Any]):
    """An async connection whose every wait ends."""

    patience = 30.0
    hand: Any
    statements: Statements

    async def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return await super().wait(_bounded(gen, self.patience), *args, **kwargs)

    async def ask(self, sql: str, values: Any) -> Rows:
        """Execute one of our statements."""
        return await super().wait(self.statements.ask(sql, values, self.patience))

    async def by_hand(self, sql: str, values: Any) -> Rows:
        """Likewise, unprepared: behind a pooler."""
        await self.hand.execute(sql, values)
        return await self.hand.fetchall() if has_rows(self.hand) else []


C = TypeVar("C", PatientConnection, PatientAsyncConnection)


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect, and how."""

    url: str
    where: str  # for people: without the password
    pooled: bool | None = None  # behind a transaction pooler; None: find out

    @classmethod
    def parse(cls, url: str) -> Server:
        """Take our own options out of the URL; the rest is libpq's."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        pooled = options.pop("pooled", None)
        if pooled not in (None, "true", "false"):
            raise ConfigError(f"pooled={pooled}: say true or false.")
        rest = [part for part in parts.query.split("&") if part.partition("=")[0] != "pooled"]  # as it was written
        clean = urlunsplit(parts._replace(query="&".join(rest)))
        host = parts.netloc.rpartition("@")[2] or options.get("host", "the local server")
        return cls(clean, f"{host}{parts.path}", None if pooled is None else pooled == "true")

    def settings(self, pooled: bool, patience: float) -> dict[str, Any]:
        """What every connection of ours is opened with; where the URL says otherwise, that counts."""
        usual = {
            "connect_timeout": min(CONNECT_TIMEOUT, max(2, ceil(patience))),  # libpq knows no less than 2
            "application_name": "dibs",
            "keepalives_idle": 30,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }
        said = dict(parse_qsl(urlsplit(self.url).query))
        wanted = {name: value for name, value in usual.items() if name not in said}
        return {
            **wanted,
            "client_encoding": "utf8",
            "autocommit": True,
            "prepare_threshold": None if pooled else 0,
        }

    def connect(self, *, pooled: bool, patience: float, plain: bool = False) -> PatientConnection:
        """A sync connection, ready for our statements, or plain for those of others."""
        try:
            raw = PatientConnection.connect(self.url, **self.settings(pooled, patience))
        except psycopg.Error as error:
            raise translate_connect(error, self.where) from error
        raw.patience = patience
        return raw if plain else _ready(raw)

    async def aconnect(self, *, pooled: bool, patience: float, plain: bool = False) -> PatientAsyncConnection:
        """An async connection."""
        try:
            raw = await PatientAsyncConnection.connect(self.url, **self.settings(pooled, patience))
        except psycopg.Error as error:
            raise translate_connect(error, self.where) from error
        raw.patience = patience
        return raw if plain else _ready(raw)


def _ready(raw: C) -> C:
    taught(raw)
    raw.hand = raw.cursor(binary=True)
    raw.statements = Statements(raw)
    return raw


def taught(those: T) -> T:
    """Our own way to read JSON, for a connection or for one cursor only."""
    for name in ("json", "jsonb"):
        those.adapters.register_loader(name, RawText)  # type: ignore[attr-defined]  # of either kind
    those.adapters.register_loader("jsonb", RawBinary)  # type: ignore[attr-defined]  # of either kind
    return those


def has_rows(cursor: Any) -> bool:
    """Whether there is anything to fetch. (`cursor.description` would describe every column, at 4 us each.)"""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def alone(raw: Any, operation: Operation[Any]) -> bool:
    """Whether its statements may stand alone. Behind a pooler look-ups may not: they bring settings along."""
    pooled = raw.prepare_threshold is None
    return not operation.atomic and not (pooled and operation.reads)


def sound(raw: Any) -> bool:
    """Open, and in no transaction."""
    return not raw.closed and raw.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE


def carry(raw: PatientConnection, dialect: Dialect, operation: Operation[T], where: str) -> T:
    """An operation over a sync connection of ours: alone when it is one statement, else in a transaction."""
    execute = raw.by_hand if raw.prepare_threshold is None else raw.ask
    try:
        if alone(raw, operation):
            return run(execute, dialect.speak(operation, own=True))
        with raw.transaction(), ExitStack() as copying:

            def carried(sql: str, values: Any) -> Rows:
                copying.close()
                if not isinstance(values, Iterator):
                    return execute(sql, values)
                copy = copying.enter_context(raw.hand.copy(sql))
                for piece in values:
                    copy.write(piece)
                return []  # the server goes on reading while the next ones are made

            if raw.prepare_threshold is None:
                raw.execute(LOCAL_SETTINGS)
            return run(carried, dialect.speak(operation, own=True))
    except (psycopg.Error, OSError) as error:
        if isinstance(error, OSError) and sound(raw):
            raise  # of whoever reads the jobs that are to be added
        raise translate(error, where) from error


async def acarry(
    raw: PatientAsyncConnection, dialect: Dialect, operation: Operation[T], where: str, local: str = ""
) -> T:
    """The same over an async connection; `local`: settings that hold for this transaction only."""
    execute = raw.by_hand if raw.prepare_threshold is None else raw.ask
    try:
        if not local and alone(raw, operation):
            return await arun(execute, dialect.speak(operation, own=True))
        async with raw.transaction(), AsyncExitStack() as copying:

            async def carried(sql: str, values: Any) -> Rows:
                await copying.aclose()
                if not isinstance(values, Iterator):
                    return await execute(sql, values)
                copy = await copying.enter_async_context(raw.hand.copy(sql))
                for piece in values:
                    await copy.write(piece)
                return []

            if raw.prepare_threshold is None:
                await raw.execute(LOCAL_SETTINGS + local)
            return await arun(carried, dialect.speak(operation, own=True))
    except (psycopg.Error, OSError) as error:
        if isinstance(error, OSError) and sound(raw):
            raise  # of whoever reads the jobs that are to be added
        raise translate(error, where) from error
