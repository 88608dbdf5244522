"""The SQLite engine: one file, one connection for each role, async by a thread for each role."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from types import ModuleType
from typing import TypeVar

from dibs.engines import migrate
from dibs.engines.engine import DEADLINE, Capabilities, Engine, Hint, Session, mind_forks, never_close
from dibs.engines.sqlite.connection import Place, SqliteConnection, check_path
from dibs.engines.sqlite.dialect import SqliteDialect
from dibs.engines.sqlite.transaction import SqliteAsyncOpen, SqliteOpen
from dibs.engines.sqlite.wakeups import Watch
from dibs.operations.operation import Operation

T = TypeVar("T")


class SqliteEngine(Engine):
    """Jobs in a SQLite file. It migrates itself on first use."""

    name = "sqlite"
    can = Capabilities(push_wakeups=False, listens=True, notifies=False, cursor=False, lanes=1)
    schema = "main"
    _ready: bool
    _connections: dict[str, SqliteConnection]
    _threads: dict[str, ThreadPoolExecutor]
    _watches: weakref.WeakSet[Watch]
    _free_roles: list[str]
    _role_numbers: count[int]

    def __init__(
        self,
        path: str,
        *,
        module: ModuleType = sqlite3,
        synchronous: str = "full",
        network: bool = False,
        deadline: float = DEADLINE,
    ) -> None:
        self.place = Place(path, module, synchronous, network)
        self.dialect = SqliteDialect(able=self.place.able)
        self.deadline = deadline
        self._clean()
        mind_forks(self)

    def run_once(self, operation: Operation[T], *, within: float | None = None) -> T:
        """On the connection for reading or the one for work. Beats have one of their own: whoever has only so much time
        does not wait behind what this process adds, which may itself wait for another."""
        role = "read" if operation.reads else "work"
        return self.carry(role if within is None else "beats", operation, within)

    async def arun_once(self, operation: Operation[T]) -> T:
        """The same, on that role's thread."""
        role = "read" if operation.reads else "work"
        return await self.in_thread(role, lambda: self.carry(role, operation))

    def carry(self, role: str, operation: Operation[T], within: float | None = None) -> T:
        """On the connection of a role; on the next one, if that was closed by another thread while we waited for it."""
        while True:
            connection = self.connection(role)
            with connection.lock:
                if not connection.closed:
                    return connection.run(operation, within=within)

    def session(self, purpose: str) -> Session:
        """A role of its own."""
        return SqliteSession(self, purpose)

    def connection(self, role: str) -> SqliteConnection:
        """The connection of a role, opened on first use, after the schema is known to fit."""
        with self._lock:
            self.ready()
            if role not in self._connections:
                self._connections[role] = SqliteConnection(self.place, self.dialect, self.deadline)
            return self._connections[role]

    def ready(self) -> None:
        """See, once, that the schema fits; a new file is migrated."""
        with self._lock:
            if not self._ready:
                self._ensure()
                self._ready = True

    async def in_thread(self, role: str, act: Callable[[], T]) -> T:
        """Run on the thread of a role; when the caller is cancelled the work still ends cleanly."""
        with self._lock:
            if role not in self._threads:
                self._threads[role] = ThreadPoolExecutor(1, thread_name_prefix=f"dibs-{role}")
            future = asyncio.get_running_loop().run_in_executor(self._threads[role], act)
        return await future

    @contextmanager
    def transaction(self) -> Iterator[SqliteOpen]:
        """On a connection of its own for the time being."""
        role = self._take_role()
        try:
            opened = SqliteOpen(self.connection(role))
            try:
                yield opened
            finally:
                opened.end()
        finally:
            self._free_roles.append(role)

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[SqliteAsyncOpen]:
        """The same, on a thread of its own."""
        role = self._take_role()
        in_thread = partial(self.in_thread, role)
        begun: list[SqliteOpen] = []

        def end() -> None:
            for each in begun:
                each.end()

        try:
            await in_thread(lambda: begun.append(SqliteOpen(self.connection(role))))
            yield SqliteAsyncOpen(begun[0], in_thread)
        finally:  # whoever is cancelled while it begins has it ended all the same, by the same thread, right after
            ending = asyncio.ensure_future(in_thread(end))
            ending.add_done_callback(lambda _: self._free_roles.append(role))
            await asyncio.shield(ending)

    def _take_role(self) -> str:
        try:
            return self._free_roles.pop()
        except IndexError:
            return f"task-{next(self._role_numbers)}"

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[AsyncIterator[Hint]]:
        """A hint whenever another connection has committed."""
        watch = Watch(self.place, self._lock)
        self._watches.add(watch)
        hints = watch.hints()
        try:
            yield hints
        finally:
            with suppress(RuntimeError):  # somebody still waits for the next
                await hints.aclose()
            watch.close()

    def migrate(self) -> list[str]:
        """Bring the schema up to date."""
        with self._lock:
            return self._ensure()

    @property
    def exists(self) -> bool:
        """Whether there is such a file; it is made on first use."""
        return os.path.exists(self.place.path)

    def applied(self) -> list[tuple[int, str]]:
        """The migrations that this file has had; to look does not create one."""
        if not self.exists:
            check_path(self.place)
            return []
        with self._lock:
            connection = SqliteConnection(self.place, self.dialect, self.deadline)
            try:
                with connection.translated():
                    return migrate.sqlite_applied(connection)
            finally:
                connection.close()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            connections, threads = self._connections, self._threads
            self._ready, self._connections, self._threads = False, {}, {}
        for thread in threads.values():  # without the lock, which what still runs on them may need
            thread.shutdown(wait=True)
        for connection in connections.values():
            connection.close()

    async def aclose(self) -> None:
        """Close every connection, from async code."""
        await asyncio.to_thread(self.close)

    def release(self, role: str) -> None:
        """Close what belongs to one role."""
        with self._lock:
            connection, thread = self._connections.pop(role, None), self._threads.pop(role, None)
        if thread is not None:
            thread.shutdown(wait=True)
        if connection is not None:
            connection.close()

    def _ensure(self) -> list[str]:
        connection = SqliteConnection(self.place, self.dialect, self.deadline)
        try:
            with connection.translated():
                return migrate.sqlite(connection)
        finally:
            connection.close()

    def _before_fork(self) -> None:
        """Close everything, and let nobody open anything until the fork is done.

        SQLite's notes on which locks this process holds are inherited with it. A child that opens the file anew goes by
        them and takes no lock of its own: when the parent then closes the file, it thinks itself alone and removes
        the -wal under the child, with all that the child commits from then on.
        """
        while True:
            mine = [each for each in list(self._connections.values()) if not each.rest()]
            self._lock.acquire()
            if all(each.closed or each in mine for each in self._connections.values()):
                break
            self._lock.release()
        self._connections = {role: each for role, each in self._connections.items() if not each.closed}
        for watch in self._watches:
            watch.close()

    def _after_fork_in_parent(self) -> None:
        self._lock.release()

    def _after_fork(self) -> None:
        never_close((self._connections, self._threads, list(self._watches)))
        self._clean()

    def _clean(self) -> None:
        self._lock = threading.RLock()
        self._ready, self._connections, self._threads = False, {}, {}
        self._watches = weakref.WeakSet()
        self._free_roles, self._role_numbers = [], count()


class SqliteSession(Session):
    """A role of its own on the engine."""

    def __init__(self, engine: SqliteEngine, purpose: str) -> None:
        self.engine = engine
        self.role = f"{purpose}-{id(self):x}"

    async def arun(self, operation: Operation[T]) -> T:
        """Carry an operation, once."""
        return await self.engine.in_thread(self.role, lambda: self.engine.carry(self.role, operation))

    async def aclose(self) -> None:
        """Close the connection and its thread."""
        await asyncio.to_thread(self.engine.release, self.role)
