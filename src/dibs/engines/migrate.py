"""Migrations: numbered, the same numbers and names on both engines, under a lock, each once, printable as plain SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dibs.errors import NewerDatabase, NotMigrated

if TYPE_CHECKING:
    from dibs.engines.dialect import Dialect
    from dibs.engines.sqlite.connection import SqliteConnection

NAME = re.compile(r"^(\d{4})_(\w+)\.sql$")
LOCK = 7_237_881_514  # an arbitrary number that all of us lock while migrating


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def title(self) -> str:
        """As people see it."""
        return f"{self.number:04} {self.name}"


def migrations(engine: str) -> list[Migration]:
    """All that this version of dibs has, in order."""
    found = []
    for file in files(f"dibs.engines.{engine}").joinpath("migrations").iterdir():
        if match := NAME.match(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text()))
    return sorted(found, key=lambda migration: migration.number)


def newest(engine: str) -> int:
    """The number that this version of dibs wants."""
    return migrations(engine)[-1].number


def check(version: int, wanted: int, where: str) -> None:
    """The schema must be exactly the one that this code was written for."""
    if version > wanted:
        raise NewerDatabase(
            f"{where} was migrated by a newer dibs (schema {version}, this one knows {wanted}). "
            "Upgrade dibs here; nothing was changed."
        )
    if version < wanted:
        found = f"has schema {version} and this dibs needs {wanted}" if version else "has no dibs tables yet"
        raise NotMigrated(f"{where} {found}. Run: dibs db migrate {where if '://' in where else 'app:app'}")


def missing(engine: str, done: Sequence[int], where: str) -> list[Migration]:
    """What still has to run; refuses a database that is newer than the code."""
    everything = migrations(engine)
    if done and max(done) > everything[-1].number:
        check(max(done), everything[-1].number, where)
    return [migration for migration in everything if migration.number not in done]


def script(engine: str, dialect: Dialect, schema: str) -> str:
    """Every migration as plain SQL, for people who run their own."""
    parts = [f'create schema if not exists "{schema}";\n' if engine == "postgres" else "", TABLE[engine]]
    for step in migrations(engine):
        values = f"{step.number}, '{step.name}', {NOW[engine]}"
        record = f"insert into dibs.migrations (number, name, applied_at) select {values};"
        parts.append(f"-- {step.title}\n{step.sql.rstrip()}\n{record}\n")
    return "begin;\n" + dialect.script("\n".join(parts)) + "\ncommit;\n"


NOW = {"postgres": "clock_timestamp()", "sqlite": "(select now from dibs.clock)"}
TABLE = {
    "postgres": """create table if not exists dibs.migrations (
  number int primary key, name text not null, applied_at timestamptz not null default clock_timestamp());
""",
    "sqlite": """create table if not exists dibs.migrations (
  number integer primary key, name text not null, applied_at integer not null);
""",
}


def sqlite(connection: SqliteConnection) -> list[str]:
    """Migrate a file in one transaction; processes that come second find nothing left to do."""
    where = connection.place.path
    if not missing("sqlite", [number for number, _ in sqlite_applied(connection)], where):
        return []
    with connection.writing() as raw:
        raw.execute(connection.dialect.script(TABLE["sqlite"]))
        steps = missing("sqlite", [number for number, _ in sqlite_applied(connection)], where)
        for migration in steps:
            for text in statements(connection.dialect.script(migration.sql)):
                raw.execute(text)
            connection.execute(
                connection.dialect.steps["record"][0].sql, {"number": migration.number, "migration": migration.name}
            )
    return [step.title for step in steps]


def sqlite_applied(connection: SqliteConnection) -> list[tuple[int, str]]:
    """The migrations that a file has had; none where it has no tables of ours."""
    table = connection.patient("select 1 from sqlite_master where type = 'table' and name = 'dibs_migrations'", {})
    rows: list[tuple[Any, ...]] = connection.patient(connection.dialect.steps["applied"][0].sql, {}) if table else []
    return [(row[0], row[1]) for row in rows]


def statements(script: str) -> Iterator[str]:
    """A SQLite script, statement by statement (its own executescript would commit)."""
    import sqlite3

    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(text):
            yield text
            text = ""
