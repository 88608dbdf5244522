"""Somebody else's transaction: open while the test goes on, committed when the block ends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dibs.engines.dialect import Dialect
from dibs.engines.engine import Engine
from dibs.engines.postgres.connection import carry
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.connection import SqliteConnection
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.operations.operation import Operation, run
from tests.actors import Actors, Worker

T = TypeVar("T")

PATIENCE = 10.0
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@dataclass
class OpenTransaction:
    """Carries operations like an engine, all in one transaction."""

    name: str
    dialect: Dialect
    run: Callable[[Operation[Any]], Any]


@contextmanager
def elsewhere(engine: Engine) -> Iterator[Actors]:
    """Actors on a connection of their own, with a transaction open."""
    match engine:
        case PostgresEngine():
            with engine.connect() as raw, raw.transaction():
                yield _actors(engine, lambda operation: carry(raw, engine.dialect, operation, engine.server.where))
        case SqliteEngine():
            engine.connection("read")
            own = SqliteConnection(engine.place, engine.dialect, engine.deadline)
            try:
                with own.writing():
                    yield _actors(engine, lambda operation: run(own.execute, engine.dialect.speak(operation)))
            finally:
                own.close()


def _actors(engine: Engine, carry_one: Callable[[Operation[Any]], Any]) -> Actors:
    return Actors(OpenTransaction(engine.name, engine.dialect, carry_one))  # type: ignore[arg-type]  # as much as they use


class _Undo(Exception):
    pass


@contextmanager
def rolled_back(engine: Engine) -> Iterator[Actors]:
    """The same, but nothing is committed."""
    with suppress(_Undo), elsewhere(engine) as other:
        yield other
        raise _Undo


def through(worker: Worker, other: Actors) -> Worker:
    """The same worker, acting in that transaction."""
    return replace(worker, engine=other.engine)


def another(engine: Engine) -> Engine:
    """A second process: an engine of its own on the same database."""
    match engine:
        case PostgresEngine():
            return PostgresEngine(engine.server.url, schema=engine.schema)
        case SqliteEngine():
            return SqliteEngine(engine.place.path, module=engine.place.module)
    raise AssertionError(engine)


def until_somebody_waits(actors: Actors) -> None:
    """Go on when a statement waits for a lock."""
    deadline = time.monotonic() + PATIENCE
    while not actors.sql(WAITING)[0][0]:
        assert time.monotonic() < deadline, "nobody waits for a lock"
