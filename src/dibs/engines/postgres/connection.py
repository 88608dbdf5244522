"""PostgreSQL connections of our own: how they are opened, how long they wait, how JSON comes back.

Every wait has an end: a server may accept connections while its commits hang. What was given up on is stopped: else the
server would write it as soon as it can, long after somebody was told that it had failed.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import psycopg
from psycopg import AsyncConnection, Connection, capabilities, pq
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.waiting import Wait

from dibs.engines.dialect import Dialect
from dibs.engines.postgres.errors import Stopped, TimedOut, translate, translate_connect
from dibs.engines.postgres.prepared import Statements
from dibs.errors import ConfigError
from dibs.operations.operation import Operation, Rows, arun, run

T = TypeVar("T")

CONNECT_TIMEOUT = 10
LAST_WORD = 1.0  # seconds to tell the server to stop, and for what it says then
STOPPED = (b"57014", b"55P03")  # told by us, or by its own limit
COPYING = (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT)
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


def _last_word(raw: Any) -> Generator[Any, Any, bool]:
    """What the server says after it was told to stop: whether it has. (It may have been just about to answer.)"""
    pgconn, said = raw.pgconn, None
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        more = pgconn.get_result()
        if more is None or more.status in COPYING:
            return said is not None and said.error_field(pq.DiagnosticField.SQLSTATE) in STOPPED
        said = more


class PatientConnection(Connection[Any]):
    """A sync connection whose every wait ends."""

    patience = 30.0
    hand: Any  # its one cursor, for what is not prepared
    statements: Statements

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(_bounded(gen, self.patience), *args, **kwargs)
        except TimedOut as error:
            raise self._stopped(error) from error

    def ask(self, sql: str, values: Any) -> Rows:
        """Execute one of our statements."""
        try:
            return super().wait(self.statements.ask(sql, values, self.patience))
        except TimedOut as error:
            raise self._stopped(error) from error

    def _stopped(self, error: TimedOut) -> TimedOut:
        """Tell the server to stop what was given up on, and learn whether it has."""
        with suppress(psycopg.Error, OSError):
            if capabilities.has_cancel_safe():  # else it could take for ever; a limit for locks is set in any case
                self.cancel_safe(timeout=LAST_WORD)
                if super().wait(_bounded(_last_word(self), LAST_WORD)):
                    return Stopped(*error.args)
        self.pgconn.finish()  # whatever it says later is not for us
        return error

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
        try:
            return await super().wait(_bounded(gen, self.patience), *args, **kwargs)
        except TimedOut as error:
            raise await self._stopped(error) from error

    async def ask(self, sql: str, values: Any) -> Rows:
        """Execute one of our statements."""
        try:
            return await super().wait(self.statements.ask(sql, values, self.patience))
        except TimedOut as error:
            raise await self._stopped(error) from error

    async def _stopped(self, error: TimedOut) -> TimedOut:
        """Tell the server to stop what was given up on, and learn whether it has."""
        with suppress(psycopg.Error, OSError):
            if capabilities.has_cancel_safe():  # else it could take for ever; a limit for locks is set in any case
                await self.cancel_safe(timeout=LAST_WORD)
                if await super().wait(_bounded(_last_word(self), LAST_WORD)):
                    return Stopped(*error.args)
        self.pgconn.finish()  # whatever it says later is not for us
        return error

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
