"""How an adopted table is: what it lacks, what is wrong with its rows, and how the database finds those that wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dibs.adopted.inspect import inspect, tables
from dibs.adopted.plan import Improvement, Plan
from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_extras import function_name, recovers, wakes
from dibs.adopted.source import Adopted
from dibs.engines.engine import Engine
from dibs.errors import NotAdoptable
from dibs.operations import adopted

MANY = 1_000  # rows that wait: with fewer, the database may well read all of them


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, and what to do."""

    problem: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """One table."""

    name: str
    findings: Sequence[Finding]
    explained: Sequence[str] = ()


def plan(table: Adopted, engine: Engine, existing: str | None = None) -> list[Improvement]:
    """What it lacks."""
    adoption = table.adoption
    numbers = all(isinstance(word, int) for word in adoption.words.values())
    word = int(existing) if existing is not None and numbers and existing.lstrip("-").isdigit() else existing
    found = Plan(adoption, engine.run(tables(adoption)), engine.name, word).improvements()
    if adoption.where and not any(each.sql.startswith("alter table") for each in found):
        table.understood(engine)  # nothing that is made for a condition which nobody understands
    return found


def check(table: Adopted, engine: Engine) -> Checked:
    """Look at everything."""
    try:
        findings = [Finding(f"it lacks this: {each.why}", each.sql + ";") for each in plan(table, engine)]
        source = table.understood(engine)
    except NotAdoptable as error:
        return Checked(table.name, [Finding(str(error))])
    trouble = engine.run(adopted.trouble(source))
    for word, count in trouble.unknown:
        findings.append(Finding(f"{count:,} rows have the status {word!r}, which is none of its words"))
    if trouble.stuck:
        some = ", ".join(trouble.stuck[:5])
        findings.append(
            Finding(f"{_many(trouble.stuck)} rows say that they run, and nobody alive works on them", f"such as {some}")
        )
    if trouble.nameless:
        said = "rows have a key that cannot name them: null, bytes, or a text with NUL. They are left alone"
        findings.append(Finding(f"{trouble.nameless:,} {said}"))
    if trouble.duplicates:
        query = source.steps["duplicates"][0].sql.replace("%%", "%")
        findings.append(Finding(f"{_many(trouble.duplicates)} rows have more than one output", query + ";"))
    findings += _stale(table, engine, engine.run(adopted.functions(source)))
    explained = engine.run(adopted.explain(source))
    if any(map(_is_slow, explained)) and engine.run(adopted.counted(source, MANY))[0] >= MANY:
        findings.append(Finding("a claim reads more than the rows that it takes", "\n".join(explained)))
    return Checked(table.name, findings, explained)


def _stale(table: Adopted, engine: Engine, functions: dict[str, str]) -> list[Finding]:
    """Triggers and the recovery for cron have the words, the condition and the time in them."""
    if not functions:
        return []
    made = _extras(table, engine)
    return [
        Finding(
            f"the function {name!r} was made for something else than is said of the table now: make it anew", sql + ";"
        )
        for name, body in functions.items()
        for sql in made.get(name, ())[:1]
        if body not in sql
    ]


def _extras(table: Adopted, engine: Engine) -> dict[str, list[str]]:
    """What may have been added on PostgreSQL, by the names of its functions."""
    texts = PostgresTable(table.adoption, engine.run(inspect(table.adoption)), engine.dialect.own)
    return {
        function_name("wake", table.name): wakes(texts),
        function_name("recover", table.name): [recovers(texts, table.adoption.stuck_after)],
    }


def _many(found: Sequence[object]) -> str:
    return f"{len(found):,}{' or more' if len(found) >= 1_000 else ''}"


def _is_slow(line: str) -> bool:
    """It reads the whole table, or sorts what it has read.

    >>> _is_slow("  ->  Seq Scan on stickers t"), _is_slow("SCAN stickers USING INDEX stickers_dibs_waiting")
    (True, False)
    >>> _is_slow("  ->  Sort  (cost=8.4..9.3)"), _is_slow("        Sort Key: t.id")  # a Merge Append has one too
    (True, False)
    """
    words = ("Seq Scan", "Sort ", "USE TEMP B-TREE")
    node = line.strip().removeprefix("->").strip().removeprefix("Incremental ")
    return any(node.startswith(word) and not node.startswith("Sort Key") for word in words) or (
        line.startswith("SCAN ") and "USING" not in line
    )
