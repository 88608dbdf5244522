"""Where the jobs of a test are: something that can be sent to another process and opened there."""

import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from tests.engines import Engines, classic, params


@dataclass(frozen=True, slots=True)
class Place:
    """A database, by the name of its kind and its address."""

    kind: str
    address: str

    @classmethod
    def of(cls, kind: str, engine: Engine) -> "Place":
        """The database that this engine has open."""
        match engine:
            case SqliteEngine():
                return cls(kind, engine.place.path)
            case PostgresEngine():
                return cls(kind, engine.server.url)
        raise AssertionError(engine)

    def open(self, **options: Any) -> Engine:
        """An engine of one's own on it."""
        if self.kind.startswith("sqlite"):
            module = classic() if self.kind == "sqlite-classic" else sqlite3
            return SqliteEngine(self.address, module=module, **options)
        return PostgresEngine(self.address, **options)


class Places:
    """Fresh databases by kind; they are there until the end of the test."""

    def __init__(self, engines: Engines, stack: ExitStack) -> None:
        self.engines, self.stack = engines, stack

    def fresh(self, kind: str) -> tuple[Place, Engine]:
        """A database, and an engine on it for the test itself."""
        engine = self.stack.enter_context(self.engines.open(kind))
        if kind.startswith("sqlite"):
            engine.migrate()
        return Place.of(kind, engine), engine


def long(*kinds: str) -> list[Any]:
    """Kinds as parameters of a test, for CI only: others stand for them in a normal run."""
    return [pytest.param(*each.values, marks=[*each.marks, pytest.mark.long]) for each in params(*kinds)]
