"""From what a user says of a table, and what the database says of it, to the statements of a source."""

from __future__ import annotations

import re

from dibs.adopted import postgres_checks, sqlite_checks
from dibs.adopted.inspect import Found
from dibs.adopted.mapping import Adoption
from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_extras import functions
from dibs.adopted.postgres_plain import plain
from dibs.adopted.sqlite import SqliteTable
from dibs.engines.dialect import Step
from dibs.engines.engine import Engine
from dibs.operations.adopted import Source

PARAMETER = re.compile(r"(?<!%)%\((\w+)\)s")


def compiled(adoption: Adoption, found: Found, engine: Engine) -> Source:
    """The source, for this engine."""
    dialect = engine.dialect
    if engine.name == "sqlite":
        lite = SqliteTable(adoption, found, dialect.own, dialect.steps["turn"])
        steps = lite.statements() | sqlite_checks.checks(lite)
    else:
        table = PostgresTable(adoption, found, dialect.own)
        steps = {
            name: [Step(text, uses=frozenset(PARAMETER.findall(text))) for text in texts]
            for name, texts in _on_postgres(table).items()
        }
    return Source(
        adoption.name,
        steps,
        batch=adoption.batch,
        poll=adoption.poll,
        stuck_after=adoption.stuck_after,
        max_attempts=adoption.max_attempts,
    )


def _on_postgres(table: PostgresTable) -> dict[str, list[str]]:
    return table.statements() | plain(table) | postgres_checks.checks(table) | {"functions": [functions(table)]}
