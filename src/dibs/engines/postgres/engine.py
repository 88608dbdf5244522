"""The PostgreSQL engine: idle connections for each process and event loop, sessions for lanes, LISTEN for hints."""

from __future__ import annotations

import asyncio
import re
import select
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import psycopg

from dibs.engines import migrate
from dibs.engines.engine import DEADLINE, Capabilities, Engine, Hint, Session, mind_forks, never_close
from dibs.engines.postgres.connection import PatientAsyncConnection, PatientConnection, Server, acarry, carry, sound
from dibs.engines.postgres.dialect import PostgresDialect
from dibs.engines.postgres.errors import translate
from dibs.engines.postgres.transaction import PostgresAsyncOpen, PostgresOpen
from dibs.engines.postgres.wakeups import hints
from dibs.errors import ConfigError, NotMigrated
from dibs.operations.operation import Operation

T = TypeVar("T")
Loops: TypeAlias = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[PatientAsyncConnection]]
C = TypeVar("C", PatientConnection, PatientAsyncConnection)

# A turn needs a fresh snapshot for each statement; compiling a look-up takes longer than running it.
SETTINGS = "set default_transaction_isolation to 'read committed'; set jit = off"
# Nobody waits for a lock longer than we wait for the answer: where the network is gone, nobody can tell the server.
LOCKS = "; select set_config('lock_timeout', '{:.0f}ms', false) where current_setting('lock_timeout') = '0'"
# Rows of other people's tables are found by their keys and in their order, whatever an old count of them makes likely.
ROW_SETTINGS = (
    "; set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off"
    "; set plan_cache_mode = force_generic_plan; set lock_timeout = '1s'; set bytea_output = hex"
)
IDLE = 8  # connections kept for reuse
DIRECT = Capabilities(push_wakeups=True, listens=True, notifies=True, cursor=True, lanes=2)
POOLED = Capabilities(push_wakeups=False, listens=False, notifies=True, cursor=True, lanes=2, prepared=False)
POOLED_BUT_LISTENING = replace(POOLED, push_wakeups=True, listens=True)
SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class PostgresEngine(Engine):
    """Jobs in a schema of a PostgreSQL database."""

    name = "postgres"

    def __init__(
        self, url: str, *, schema: str = "dibs", listen_url: str | None = None, deadline: float = DEADLINE
    ) -> None:
        if not SCHEMA.fullmatch(schema):
            raise ConfigError(f"schema {schema!r}: use letters, digits and underscores, 63 at most.")
        self.server, self.schema, self.deadline = Server.parse(url), schema, deadline
        self.listener = Server.parse(listen_url) if listen_url else None
        self.dialect = PostgresDialect(schema)
        self.pooled = self.server.pooled
        self._clean()
        mind_forks(self)

    @property
    def can(self) -> Capabilities:  # type: ignore[override]  # known only after the first connection
        """Behind a transaction pooler LISTEN is dead, unless there is another way to listen."""
        if not self.pooled:
            return DIRECT
        return POOLED if self.listener is None else POOLED_BUT_LISTENING

    def run_once(self, operation: Operation[T], *, within: float | None = None) -> T:
        """On an idle connection, or a new one."""
        with self.connection(within) as raw:
            return carry(raw, self.dialect, operation, self.server.where)

    async def arun_once(self, operation: Operation[T]) -> T:
        """The same for async code."""
        async with self.aconnection() as raw:
            return await acarry(raw, self.dialect, operation, self.server.where)

    def session(self, purpose: str) -> Session:
        """A connection of its own."""
        return PostgresSession(self, ROW_SETTINGS if purpose == "rows" else "")

    @contextmanager
    def connection(self, within: float | None = None) -> Iterator[PatientConnection]:
        """An idle connection, or a new one; kept if it is still sound afterwards. It waits `within` seconds at most for
        each answer, that to connecting included."""
        patience = within or self.deadline
        raw = self._take(self._idle) or self.connect(patience)
        raw.patience = patience
        try:
            yield raw
        finally:
            with self._lock:
                if sound(raw) and len(self._idle) < IDLE:
                    self._idle.append(raw)
                else:
                    raw.close()

    @asynccontextmanager
    async def aconnection(self) -> AsyncIterator[PatientAsyncConnection]:
        """The same for the running event loop."""
        idle = self._loops.setdefault(asyncio.get_running_loop(), [])
        raw = self._take(idle) or await self.aconnect()
        try:
            yield raw
        finally:
            if sound(raw) and len(idle) < IDLE and _is_open(self._loops, idle):
                idle.append(raw)
            else:
                await raw.close()

    def _take(self, idle: list[C]) -> C | None:
        """An idle connection that the server has not closed meanwhile: a job must not be lost in a dead one."""
        with self._lock:
            while idle:
                raw = idle.pop()
                if not raw.closed and not readable(raw):
                    return raw
                never_mind(raw)
        return None

    def connect(self, patience: float | None = None) -> PatientConnection:
        """A new connection, to a database whose schema fits."""
        raw = self.server.connect(pooled=bool(self.pooled), patience=patience or self.deadline)
        try:
            if not self._checked:
                self._check(raw.info.backend_pid, raw.execute(self._question(), prepare=False).fetchall())
            if not self.pooled:
                raw.execute(self._settings(), prepare=False)
        except BaseException as error:
            raw.close()
            if isinstance(error, psycopg.Error):
                raise self._no_schema(error) from error
            raise
        raw.prepare_threshold = None if self.pooled else 0
        return raw

    async def aconnect(self, more: str = "") -> PatientAsyncConnection:
        """The same for async code."""
        raw = await self.server.aconnect(pooled=bool(self.pooled), patience=self.deadline)
        try:
            if not self._checked:
                cursor = await raw.execute(self._question(), prepare=False)
                self._check(raw.info.backend_pid, await cursor.fetchall())
            if not self.pooled:
                await raw.execute(self._settings() + more, prepare=False)
        except BaseException as error:
            await raw.close()
            if isinstance(error, psycopg.Error):
                raise self._no_schema(error) from error
            raise
        raw.prepare_threshold = None if self.pooled else 0
        return raw

    def _settings(self) -> str:
        return SETTINGS + LOCKS.format(self.deadline * 1000)

    def _question(self) -> str:
        """Asked once in a process: who serves us, and which schema is there. Not prepared: a pooler may be between."""
        version = self.dialect.steps["version"][0].sql
        return f"select pg_backend_pid(), ({version})"

    def _check(self, pid: int, rows: list[Any]) -> None:
        if self.pooled is None:
            self.pooled = rows[0][0] != pid  # a pooler answers with a number of its own
        migrate.check(rows[0][1], migrate.newest("postgres"), self.server.where)
        self._checked = self.reached = True

    def _no_schema(self, error: psycopg.Error) -> Exception:
        translated = translate(error, self.server.where)
        return (
            NotMigrated(f"{self.server.where} has no dibs tables yet. Run: dibs db migrate")
            if isinstance(translated, NotMigrated)
            else translated
        )

    @contextmanager
    def transaction(self) -> Iterator[PostgresOpen]:
        """On a connection that has none of our settings."""
        raw = self._take(self._plain) or self.server.connect(
            pooled=bool(self.pooled), patience=self.deadline, plain=True
        )
        try:
            opened = PostgresOpen(raw, self.dialect, self.deadline, self.server.where)
            try:
                yield opened
            finally:
                opened.end()
        finally:
            with self._lock:
                if sound(raw):
                    self._plain.append(raw)
                else:
                    never_mind(raw)

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[PostgresAsyncOpen]:
        """The same for the running event loop."""
        idle = self._plain_loops.setdefault(asyncio.get_running_loop(), [])
        raw = self._take(idle) or await self.server.aconnect(
            pooled=bool(self.pooled), patience=self.deadline, plain=True
        )
        try:
            opened = PostgresAsyncOpen(raw, self.dialect, self.deadline, self.server.where)
            await opened.begin()
            try:
                yield opened
            finally:
                await opened.end()
        finally:
            if sound(raw) and _is_open(self._plain_loops, idle):
                idle.append(raw)
            else:
                never_mind(raw)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[AsyncIterator[Hint]]:
        """Notifications, on a connection of their own that is never in a transaction."""
        server = self.listener or self.server
        raw = await server.aconnect(pooled=False, patience=self.deadline)
        try:
            for channel in channels or ("dibs_wake", "job_events"):
                try:
                    await raw.execute(f'listen "{channel}"')
                except (psycopg.Error, OSError) as error:
                    raise translate(error, server.where) from error
            raw.patience = float("inf")  # there may be nothing to hear for long
            yield hints(raw)
        finally:
            await raw.close()

    def migrate(self) -> list[str]:
        """Bring the schema up to date, under a lock that the transaction holds."""
        raw = self.server.connect(pooled=True, patience=max(self.deadline, 60.0))
        try:
            with raw.transaction():
                raw.execute("select pg_advisory_xact_lock(%s)", [migrate.LOCK])
                return self._migrate(raw)
        except psycopg.Error as error:
            raise translate(error, self.server.where) from error
        finally:
            raw.close()

    def applied(self) -> list[tuple[int, str]]:
        """The migrations that this database has had."""
        raw = self.server.connect(pooled=True, patience=self.deadline)
        try:
            return self._applied(raw)
        except psycopg.Error as error:
            raise translate(error, self.server.where) from error
        finally:
            raw.close()

    def _migrate(self, raw: PatientConnection) -> list[str]:
        steps = migrate.missing("postgres", [number for number, _ in self._applied(raw)], self.server.where)
        if steps:
            raw.execute("set local client_min_messages = warning")
            raw.execute(f'create schema if not exists "{self.schema}"')
            raw.execute(self.dialect.script(migrate.TABLE["postgres"]))
        for step in steps:
            raw.execute(self.dialect.script(step.sql))
            raw.execute(self.dialect.steps["record"][0].sql, {"number": step.number, "migration": step.name})
        return [step.title for step in steps]

    def _applied(self, raw: PatientConnection) -> list[tuple[int, str]]:
        there = raw.execute("select to_regclass(%s) is not null", [f'"{self.schema}".migrations']).fetchone()
        rows = raw.execute(self.dialect.steps["applied"][0].sql).fetchall() if there and there[0] else []
        return [(row[0], row[1]) for row in rows]

    def close(self) -> None:
        """Close the idle connections of sync code."""
        with self._lock:
            for raw in (*self._idle, *self._plain):
                raw.close()
            self._idle.clear()
            self._plain.clear()

    async def aclose(self) -> None:
        """Close the idle connections of this event loop, and those of sync code."""
        loop = asyncio.get_running_loop()
        for raw in (*self._loops.pop(loop, []), *self._plain_loops.pop(loop, [])):
            await raw.close()
        self.close()

    def _before_fork(self) -> None:
        """A server's connections are only sockets: a child can just leave them alone."""

    def _after_fork_in_parent(self) -> None:
        """Nothing was changed."""

    def _after_fork(self) -> None:
        never_close((self._idle, self._plain, dict(self._loops), dict(self._plain_loops)))
        self._clean()

    def _clean(self) -> None:
        self._lock = threading.Lock()
        self._checked = False
        self._idle: list[PatientConnection] = []
        self._plain: list[PatientConnection] = []  # for transactions of tasks
        self._loops: Loops = weakref.WeakKeyDictionary()
        self._plain_loops: Loops = weakref.WeakKeyDictionary()


class PostgresSession(Session):
    """One connection, opened on first use, and again after it was lost."""

    def __init__(self, engine: PostgresEngine, settings: str = "") -> None:
        self.engine, self.settings = engine, settings
        self.raw: PatientAsyncConnection | None = None

    async def arun(self, operation: Operation[T]) -> T:
        """Carry an operation, once."""
        if self.raw is None:
            self.raw = await self.engine.aconnect(self.settings)
        try:
            local = self.settings.replace("; set ", "; set local ") if self.engine.pooled else ""
            return await acarry(self.raw, self.engine.dialect, operation, self.engine.server.where, local)
        finally:
            if not sound(self.raw):
                await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        raw, self.raw = self.raw, None
        if raw is not None:
            await raw.close()


def _is_open(loops: Loops, idle: list[Any]) -> bool:
    """Whether these connections have not been closed meanwhile: nobody would find another one among them."""
    return loops.get(asyncio.get_running_loop()) is idle


def never_mind(raw: Any) -> None:
    """Let go of a connection that is broken anyway."""
    raw.pgconn.finish()


def readable(raw: Any) -> bool:
    """Whether the server has said something that nobody asked for, such as good-bye."""
    watch = select.poll()  # unlike select, it knows file numbers over 1,023
    watch.register(raw.fileno(), select.POLLIN)
    return bool(watch.poll(0))
