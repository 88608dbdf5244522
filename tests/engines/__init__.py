"""Every engine that the conformance suite runs over, each on a fresh, migrated, real database."""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from tests.servers import Servers

SQLITE = ["sqlite", "sqlite-classic"]
POSTGRES = ["postgres16", "postgres18", "postgres-system", *(["postgres-url"] if "DIBS_TEST_URL" in os.environ else [])]
BOUNCED = "pgbouncer"

PARENTHESES = re.compile(r"\([^()]*\)")
TOO_NEW = re.compile(r"\breturning\b|->|\bmaterialized\b|\bunixepoch\b|\biif\b|\[#|\bstring_agg\b", re.IGNORECASE)


class ClassicConnection(sqlite3.Connection):
    """Refuses what SQLite 3.24 did not have: RETURNING, UPDATE FROM, and the younger functions."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        flat, before = sql, ""
        while flat != before:
            flat, before = PARENTHESES.sub(" ", flat), flat
        if TOO_NEW.search(sql) or re.match(r"\s*update\b.*\bfrom\b", flat, re.IGNORECASE | re.DOTALL):
            raise sqlite3.OperationalError(f"near a word of a younger SQLite: syntax error in {sql}")
        return super().execute(sql, parameters)


def classic() -> ModuleType:
    """The sqlite3 module as it was before RETURNING."""
    module = ModuleType("classic")
    module.__dict__.update({name: getattr(sqlite3, name) for name in ("Error", "Connection")})
    module.__dict__["sqlite_version_info"] = (3, 24, 0)
    module.__dict__["connect"] = lambda path, **options: sqlite3.connect(path, factory=ClassicConnection, **options)
    return module


def params(*names: str) -> list[Any]:
    """The engines as parameters of a fixture, marked with what they need."""
    needs = {"postgres-system": ["postgresql"], BOUNCED: ["pgbouncer"]}
    return [pytest.param(name, marks=pytest.mark.system(*needs[name]) if name in needs else ()) for name in names]


class Engines:
    """Opens engines by name."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.servers, self.folder = servers, folder
        self.opened = 0

    @contextmanager
    def open(self, name: str, **options: Any) -> Iterator[Engine]:
        """A fresh database of the named kind."""
        if name in SQLITE:
            engine: Engine = self.sqlite(name, **options)
            try:
                yield engine
            finally:
                engine.close()
            return
        server = "postgres18" if name == BOUNCED else name
        with self.servers[server].fresh_database(template=self.template(server)) as url:
            engine = PostgresEngine(self.servers.bounced(server, url) if name == BOUNCED else url, **options)
            try:
                yield engine
            finally:
                engine.close()

    def sqlite(self, name: str = "sqlite", **options: Any) -> SqliteEngine:
        """A fresh file."""
        self.opened += 1
        module = classic() if name == "sqlite-classic" else sqlite3
        return SqliteEngine(str(self.folder / f"{self.opened}.db"), module=module, **options)

    def template(self, server: str) -> str:
        """The name of a migrated database to copy."""
        return self.servers[server].template("migrated", lambda url: _migrate(url))


def _migrate(url: str) -> None:
    engine = PostgresEngine(url)
    engine.migrate()
    engine.close()
