"""From what a user says of a table, and what the database says of it, to the statements of a source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dibs.adopted import postgres_checks, postgres_looks, sqlite_checks, sqlite_looks
from dibs.adopted.inspect import Found
from dibs.adopted.mapping import Adoption
from dibs.adopted.postgres import IMPATIENT, PostgresTable
from dibs.adopted.postgres_extras import functions
from dibs.adopted.postgres_plain import plain
from dibs.adopted.postgres_words import holds_seconds
from dibs.adopted.sqlite import SqliteTable
from dibs.engines.dialect import Step
from dibs.engines.engine import Engine
from dibs.errors import NotAdoptable
from dibs.operations.adopted import Source

PARAMETER = re.compile(r"(?<!%)%\((\w+)\)s")
WORK = ("turn", "turn_after", "done", "new_after", "due", "first", "put_off", "held", "mend", "notice")


def compiled(adoption: Adoption, found: Found, engine: Engine) -> Source:
    """The source, for this engine."""
    dialect = engine.dialect
    if engine.name == "sqlite":
        native = dialect.steps["turn"]
        lite = SqliteTable(adoption, found, dialect.own, native)
        steps = lite.statements() | sqlite_looks.looks(lite) | sqlite_checks.checks(lite)
        trial = _explained("explain query plan", steps, native)
    else:
        _check_times(adoption, found)
        table = PostgresTable(adoption, found, dialect.own)
        steps = {name: [_step(text) for text in texts] for name, texts in _on_postgres(table).items()}
        trial = _explained("explain", steps, [_step(IMPATIENT)])
    return Source(
        adoption.name,
        steps | {"trial": trial},
        batch=adoption.batch,
        poll=adoption.poll,
        stuck_after=adoption.stuck_after,
        max_attempts=adoption.max_attempts,
    )


def _check_times(adoption: Adoption, found: Found) -> None:
    """A file keeps any number in any column; PostgreSQL does not."""
    for use in ("started_at", "finished_at"):
        column = found.table.columns.get(adoption.kept.get(use, ""))
        if column is not None and not holds_seconds(column.plain):
            said = f"{column.name} is a {column.type}, too small for seconds since 1970"
            raise NotAdoptable(adoption.name, said)


def _on_postgres(table: PostgresTable) -> dict[str, list[str]]:
    seen = postgres_looks.looks(table) | postgres_checks.checks(table) | {"functions": [functions(table)]}
    return table.statements() | plain(table) | seen


def _step(text: str) -> Step:
    return Step(text, uses=frozenset(PARAMETER.findall(text)))


def _explained(word: str, steps: Mapping[str, Sequence[Step]], ours: Sequence[Step]) -> list[Step]:
    """All that a worker says of rows, each text once, only explained: nothing is done, what does not fit is said."""
    said = dict.fromkeys(step for name in WORK if name in steps for step in steps[name] if step not in ours)
    return [Step(f"{word} {step.sql}", uses=step.uses) for step in said if not step.each]
