"""What is compiled for two tables, to be read by people: `python -m tests.adopted.golden` writes it anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dibs.adopted import postgres_looks, sqlite_checks, sqlite_looks
from dibs.adopted.inspect import Found
from dibs.adopted.mapping import adoption
from dibs.adopted.plan import Plan
from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_checks import checks
from dibs.adopted.postgres_extras import functions, recovers, wakes
from dibs.adopted.postgres_plain import plain
from dibs.adopted.sqlite import SqliteTable
from dibs.engines.dialect import Step
from dibs.operations.catalogue import Column, Index, Table

FOLDER = Path(__file__).parent / "golden"
NULLABLE = ("began", "ended", "who", "why", "deleted")
WORDS = {"PENDING": "queued", "RUNNING": "started", "SUCCESSFUL": "completed", "FAILED": "failed"}
BARE = adoption("things", key="id", status="status", states=WORDS)
WHOLE = adoption(
    "Shop.OrderItem",
    key=("order", "line%"),
    status="State",
    states=WORDS | {"RETRY": "again"},
    order_by="made",
    priority="weight",
    started_at="began",
    finished_at="ended",
    worker="who",
    error="why",
    attempts="tries",
    where="deleted is null",
    output=("files", ("order", "line")),
)


def tables(engine: str) -> dict[str, tuple[object, Found]]:
    """Two tables as a catalogue would describe them."""
    number, text = ("integer", "text") if engine == "sqlite" else ("bigint", "text")
    time = "timestamp" if engine == "sqlite" else "timestamp with time zone"
    kinds = {
        "order": number,
        "line%": text,
        "State": text,
        "made": time,
        "weight": number,
        "began": time,
        "ended": time,
    }
    kinds |= {"who": text, "why": "character varying(200)", "tries": number, "deleted": time}
    key = Index("primary key", ("id",), unique=True, where=None)
    bare = Table("r", "public", "things", True, _columns({"id": number, "status": text}), [key])
    item = Table("r", "Shop", "OrderItem", True, _columns(kinds), [])
    files = Table("r", "public", "files", True, _columns({"order": number, "line": text}), [])
    return {"bare": (BARE, Found(bare, None)), "whole": (WHOLE, Found(item, files))}


def _columns(kinds: dict[str, str]) -> dict[str, Column]:
    return {name: Column(name, kind, nullable=name in NULLABLE) for name, kind in kinds.items()}


def texts() -> dict[str, str]:
    """What is written, by the name of the file."""
    found = {}
    for name, (said, there) in tables("postgres").items():
        table = PostgresTable(said, there, '"dibs".')  # type: ignore[arg-type]  # an adoption
        parts = [
            f"-- {each}\n" + ";\n".join(texts)
            for each, texts in (table.statements() | plain(table) | postgres_looks.looks(table) | checks(table)).items()
        ]
        parts += [f"-- plan\n{each.sql}" for each in Plan(said, there, "postgres").improvements()]  # type: ignore[arg-type]  # likewise
        parts += [f"-- wake\n{sql}" for sql in wakes(table)]
        parts.append(f"-- functions\n{functions(table)}")
        parts.append(f"-- cron\n{recovers(table, 300)}")
        found[f"postgres_{name}.sql"] = ";\n\n".join(parts) + ";\n"
    native = [Step("select 'the native turn'")]
    for name, (said, there) in tables("sqlite").items():
        lite = SqliteTable(said, there, "dibs_", native)  # type: ignore[arg-type]  # likewise
        parts = [
            f"-- {each}\n{_steps(steps)}"
            for each, steps in (lite.statements() | sqlite_looks.looks(lite) | sqlite_checks.checks(lite)).items()
            if each != "turn_after"
        ]
        parts += [f"-- plan\n{each.sql}" for each in Plan(said, there, "sqlite").improvements()]  # type: ignore[arg-type]  # likewise
        found[f"sqlite_{name}.sql"] = ";\n\n".join(parts) + ";\n"
    return {name: re.sub(r"[ \t]+\n", "\n", text) for name, text in found.items()}


def _steps(steps: Sequence[Step]) -> str:
    return ";\n".join(step.sql for step in steps)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in texts().items():
        (FOLDER / file).write_text(text)
