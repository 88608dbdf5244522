"""The tables of the suite are different enough."""

from __future__ import annotations

import pytest

from dibs.adopted.inspect import inspect
from tests.adopted.conftest import CASES
from tests.adopted.schemas import ALL
from tests.adopted.tables import Adopted
from tests.engines import Engines

LEAST = 8


@pytest.mark.parametrize("engine", ["sqlite", "sqlite-classic", "postgres18"])
def test_there_are_enough_of_them(engine: str) -> None:
    there = {schema.name for name, schema, _ in (case.values[0] for case in CASES) if name == engine}
    assert len(there) >= LEAST


def test_every_kind_of_key_status_and_time_occurs(engines: Engines) -> None:
    keys, statuses, times, kinds = set[str](), set[str](), set[str](), set[str]()
    for schema in ALL:
        with engines.open("postgres18") as engine:
            adoption = Adopted(engine, schema).adoption
            table = engine.run(inspect(adoption)).table
        columns = [table.columns[name] for name in adoption.key]
        keys.add("composite" if len(columns) > 1 else columns[0].plain.partition("(")[0])
        status = table.columns[adoption.status]
        statuses.add("enum" if status.labels else "number" if status.is_number else status.plain.partition("(")[0])
        times |= {table.columns[name].plain for use, name in adoption.kept.items() if use.endswith("_at")}
        kinds.add(table.kind)
    assert keys >= {"bigint", "integer", "uuid", "text", "character varying", "composite"}
    assert statuses >= {"text", "character varying", "enum", "number"}
    assert times >= {"timestamp with time zone", "timestamp without time zone", "bigint"}
    assert kinds == {"r", "p"}
    assert any("." in column for schema in ALL for column in schema.columns)
    assert any(len(schema.columns) == 2 and not schema.adoption.kept for schema in ALL)
