"""A transaction for a task's own writes, in which we have the last word: the driver's connection, without our settings.

It is inside psycopg's own transaction block, so a task that commits by itself is told, instead of breaking the fence.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from dibs.engines.dialect import Dialect
from dibs.engines.engine import AsyncOpen, Open
from dibs.engines.postgres.connection import (
    PatientAsyncConnection,
    PatientConnection,
    has_rows,
    taught,
)
from dibs.engines.postgres.errors import translate
from dibs.operations.operation import Operation, Rows, arun, run

T = TypeVar("T")

FOR_EVER = float("inf")  # a task's own statements may take as long as they take


class PostgresOpen(Open):
    """For sync tasks."""

    def __init__(self, raw: PatientConnection, dialect: Dialect, deadline: float, where: str) -> None:
        self.connection, self.dialect, self.deadline, self.where = raw, dialect, deadline, where
        self.block, self.ended = raw.transaction(), False
        self.block.__enter__()
        raw.patience = FOR_EVER

    def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""
        self.connection.patience = self.deadline
        cursor = taught(self.connection.cursor(binary=True))

        def execute(sql: str, values: dict[str, Any]) -> Rows:
            cursor.execute(sql, values)
            return cursor.fetchall() if has_rows(cursor) else []

        try:
            return run(execute, self.dialect.speak(operation))
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    def commit(self) -> None:
        """All of it, or nothing."""
        self.connection.patience, self.ended = self.deadline, True
        try:
            self.block.__exit__(None, None, None)
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    def rollback(self) -> None:
        """Nothing of it."""
        self.connection.patience = self.deadline
        self.ended = True
        with suppress(psycopg.Error):  # the connection is broken, and with it the transaction is gone
            self.block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)

    def end(self) -> None:
        """If nobody has."""
        if not self.ended:
            self.rollback()


class PostgresAsyncOpen(AsyncOpen):
    """The same for async tasks."""

    def __init__(self, raw: PatientAsyncConnection, dialect: Dialect, deadline: float, where: str) -> None:
        self.connection, self.dialect, self.deadline, self.where = raw, dialect, deadline, where
        self.block, self.ended = raw.transaction(), False

    async def begin(self) -> PostgresAsyncOpen:
        """To be called first."""
        await self.block.__aenter__()
        self.connection.patience = FOR_EVER
        return self

    async def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""
        self.connection.patience = self.deadline
        cursor = taught(self.connection.cursor(binary=True))

        async def execute(sql: str, values: dict[str, Any]) -> Rows:
            await cursor.execute(sql, values)
            return await cursor.fetchall() if has_rows(cursor) else []

        try:
            return await arun(execute, self.dialect.speak(operation))
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    async def commit(self) -> None:
        """All of it, or nothing."""
        self.connection.patience, self.ended = self.deadline, True
        try:
            await self.block.__aexit__(None, None, None)
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    async def rollback(self) -> None:
        """Nothing of it."""
        self.connection.patience = self.deadline
        self.ended = True
        with suppress(psycopg.Error):
            await self.block.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)

    async def end(self) -> None:
        """If nobody has."""
        if not self.ended:
            await self.rollback()
