"""The caller's own transaction, which a job ends: a SQLAlchemy session or connection, or Django's connection.

Their errors stay theirs, as everywhere on a caller's connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from dibs.engines.callers import ASYNC_SQLALCHEMY, arun_on, class_names, run_on
from dibs.engines.engine import AsyncOpen, Engine, Open
from dibs.errors import ForeignConnection
from dibs.operations.operation import Conversation, Operation, Statement

T = TypeVar("T")

SQLALCHEMY = {
    "sqlalchemy.engine.base.Connection",
    "sqlalchemy.orm.session.Session",
    "sqlalchemy.orm.scoping.scoped_session",
}
DJANGO = {"django.utils.connection.ConnectionProxy", "django.db.backends.base.base.BaseDatabaseWrapper"}


class Joined(Open):
    """SQLAlchemy's, sync."""

    def __init__(self, engine: Engine, session: Any) -> None:
        self.engine, self.connection = engine, session

    def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""
        return run_on(self.engine, self.connection, with_tables(self.engine, operation))

    def commit(self) -> None:
        """All of it, or nothing."""
        self.connection.commit()

    def rollback(self) -> None:
        """Nothing of it."""
        self.connection.rollback()


class DjangoJoined(Joined):
    """Django's: an atomic block of its own, which may not be inside another."""

    def __init__(self, engine: Engine, session: Any) -> None:
        super().__init__(engine, session)
        from django.db import transaction  # type: ignore[import-untyped]  # Django has no types

        self.stack = ExitStack()
        self.stack.enter_context(transaction.atomic(using=session.alias, durable=True))

    def commit(self) -> None:
        """All of it, or nothing."""
        self.stack.close()

    def rollback(self) -> None:
        """Nothing of it."""
        if self.connection.in_atomic_block:  # else its commit has failed, and it is rolled back
            self.connection.set_rollback(True)
        self.stack.close()


class AsyncJoined(AsyncOpen):
    """SQLAlchemy's, async."""

    def __init__(self, engine: Engine, session: Any) -> None:
        self.engine, self.connection = engine, session

    async def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""
        return await arun_on(self.engine, self.connection, with_tables(self.engine, operation))

    async def commit(self) -> None:
        """All of it, or nothing."""
        await self.connection.commit()

    async def rollback(self) -> None:
        """Nothing of it."""
        await self.connection.rollback()


def with_tables(engine: Engine, operation: Operation[T]) -> Operation[T]:
    """On SQLite the steps of a statement hand each other lists in temporary tables, which this connection may lack."""
    if "temporary" not in engine.dialect.steps:
        return operation

    def conversation() -> Conversation[T]:
        yield Statement("temporary")
        return (yield from operation)

    return Operation(conversation, operation.name, repeatable=operation.repeatable, atomic=True, reads=False)


@contextmanager
def join(engine: Engine, session: Any) -> Iterator[Open]:
    """Join a transaction of sync code; rolled back if it cannot be ended well."""
    names = class_names(session)
    if not names & (DJANGO | SQLALCHEMY):
        raise _unknown(session)
    opened = DjangoJoined(engine, session) if names & DJANGO else Joined(engine, session)
    try:
        yield opened
    except BaseException:
        with suppress(Exception):  # whoever owns it; what went wrong first is the news
            opened.rollback()
        raise


@asynccontextmanager
async def ajoin(engine: Engine, session: Any) -> AsyncIterator[AsyncOpen]:
    """The same for async code."""
    if not class_names(session) & ASYNC_SQLALCHEMY:
        raise _unknown(session)
    opened = AsyncJoined(engine, session)
    try:
        yield opened
    except BaseException:
        with suppress(Exception):
            await opened.rollback()
        raise


def _unknown(session: Any) -> ForeignConnection:
    return ForeignConnection(
        f"transaction() can join a SQLAlchemy session or Django's connection, sync with `with` and async with "
        f"`async with`, and not a {type(session).__module__}.{type(session).__qualname__}. Without an argument it "
        "opens a connection of its own."
    )
