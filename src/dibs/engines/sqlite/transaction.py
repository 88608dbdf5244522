"""A transaction for a task's own writes, in which we have the last word. On SQLite it holds the only write lock, so it
has a limit: after that everybody else goes on, and the task is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dibs.engines.engine import AsyncOpen, Open
from dibs.engines.sqlite.connection import SqliteConnection
from dibs.errors import TransactionTooLong
from dibs.operations.operation import Operation, run

T = TypeVar("T")

HOLD_SECONDS = 5.0
TRANSACTION = 22  # SQLITE_TRANSACTION: begin, commit, rollback
OK, DENY = 0, 1


class SqliteOpen(Open):
    """For sync tasks. `begin immediate` has been said; commit and rollback are ours to say."""

    def __init__(self, connection: SqliteConnection) -> None:
        self.inner, self.connection, self.seconds = connection, connection.raw, HOLD_SECONDS
        self.word = threading.Lock()
        self.trusted: int | None = None  # the thread that may say anything
        self.expired = False
        connection.lock.acquire()
        try:
            with connection.translated():
                connection.begin()
        except BaseException:
            connection.lock.release()
            raise
        self.connection.set_authorizer(self._authorize)
        self.timer = threading.Timer(self.seconds, self._expire)
        self.timer.daemon = True
        self.timer.start()

    def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""
        return self._ours(lambda: run(self.inner.execute, self.inner.dialect.speak(operation)), in_time=True)

    def commit(self) -> None:
        """All of it, or nothing."""
        self._ours(self.inner.commit, in_time=True)

    def rollback(self) -> None:
        """Nothing of it."""
        self._ours(self.inner.roll_back)

    def end(self) -> None:
        """Others may write again."""
        self.timer.cancel()
        try:
            self.rollback()  # if nobody has ended it
        finally:
            self.connection.set_authorizer(None)
            self.inner.lock.release()

    def _ours(self, act: Callable[[], T], *, in_time: bool = False) -> T:
        with self.word:
            if in_time and self.expired:
                raise TransactionTooLong(self.seconds)
            self.trusted = threading.get_ident()
            try:
                with self.inner.translated():
                    return act()
            finally:
                self.trusted = None

    def _authorize(self, action: int, *_: Any) -> int:
        if self.trusted == threading.get_ident():
            return OK
        return DENY if self.expired or action == TRANSACTION else OK

    def _expire(self) -> None:
        """From the timer's thread: whatever the task does now, others may write again."""
        self.expired = True
        self.connection.interrupt()
        self.rollback()


class SqliteAsyncOpen(AsyncOpen):
    """The same for async tasks: everything happens on one thread of its own."""

    def __init__(self, open_: SqliteOpen, in_thread: Callable[[Callable[[], Any]], Any]) -> None:
        self.inner, self.in_thread = open_, in_thread
        self.connection = AsyncConnection(open_.connection, in_thread)

    async def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""
        return await self.in_thread(lambda: self.inner.run(operation))  # type: ignore[no-any-return]  # what it gives

    async def commit(self) -> None:
        """All of it, or nothing."""
        await self.in_thread(self.inner.commit)

    async def rollback(self) -> None:
        """Nothing of it."""
        await self.in_thread(self.inner.rollback)


class AsyncConnection:
    """A thin awaitable form of `sqlite3.Connection`."""

    def __init__(self, raw: Any, in_thread: Callable[[Callable[[], Any]], Any]) -> None:
        self.raw, self._in_thread = raw, in_thread

    async def execute(self, sql: str, parameters: Any = ()) -> Answer:
        """Execute a statement; its rows are there already."""
        return await self._in_thread(lambda: Answer(self.raw.execute(sql, parameters)))  # type: ignore[no-any-return]

    async def executemany(self, sql: str, parameters: Iterable[Any]) -> Answer:
        """Execute a statement once for each."""
        return await self._in_thread(lambda: Answer(self.raw.executemany(sql, parameters)))  # type: ignore[no-any-return]

    async def run_sync(self, act: Callable[[Any], T]) -> T:
        """Call it with the `sqlite3.Connection`, on the thread where everything happens."""
        return await self._in_thread(lambda: act(self.raw))  # type: ignore[no-any-return]  # what it gives


class Answer:
    """What a statement gave."""

    def __init__(self, cursor: Any) -> None:
        self.rows: list[Any] = cursor.fetchall()
        self.rowcount, self.lastrowid, self.description = cursor.rowcount, cursor.lastrowid, cursor.description

    async def fetchone(self) -> Any:
        """The next row, or None."""
        return self.rows.pop(0) if self.rows else None

    async def fetchall(self) -> list[Any]:
        """The rows that are left."""
        rows, self.rows = self.rows, []
        return rows
