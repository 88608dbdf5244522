"""How PostgreSQL says the statements: psycopg's parameters, lists as array literals, documents as lines.

psycopg's own list dumper is written in Python and was the larger part of the client's time; a literal and a cast are
not. JSON has no raw newline, so documents joined by newlines need no escaping.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dibs.engines.dialect import PARAMETER, Dialect
from dibs.operations.operation import Documents, Table


class PostgresDialect(Dialect):
    """Statements for one schema of a PostgreSQL database."""

    def __init__(self, schema: str) -> None:
        super().__init__(__package__, f'"{schema}".', _percent)

    def encode(self, values: Mapping[str, Any], used: Collection[str]) -> dict[str, Any]:
        """Lists become array literals, tables one parameter for each column that is used."""
        encoded: dict[str, Any] = {}
        for name, value in values.items():
            match value:
                case Table(columns) if f"{name}_{columns[0]}" in used:
                    encoded.update(_columns(name, value))
                case _ if name not in used:
                    pass
                case bytes():
                    encoded[name] = value.decode()
                case list():
                    encoded[name] = array(value)
                case Documents(items):
                    encoded[name] = b"\n".join([item or b"" for item in items]).decode()
                case _:
                    encoded[name] = value
        return encoded


def _columns(name: str, table: Table) -> Iterator[tuple[str, str | None]]:
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    for column, items in zip(table.columns, columns, strict=True):
        yield f"{name}_{column}", lines(items) if column in table.documents else array(items)


def array(items: Sequence[Any]) -> str:
    """An array literal of numbers, texts, times or nulls.

    >>> array([1, 2]), array(['a"b', None])
    ('{1,2}', '{"a\\\\"b",NULL}')
    """
    if items and type(items[0]) is int and None not in items:
        return "{" + ",".join(map(str, items)) + "}"
    return "{" + ",".join([_element(item) for item in items]) + "}"


def _element(item: Any) -> str:
    match item:
        case None:
            return "NULL"
        case str():
            return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case datetime():
            return f'"{item.isoformat()}"'
        case _:
            return str(item)


def lines(items: Sequence[bytes | None]) -> str | None:
    """Documents as lines, an empty line for none; None when there is no document at all."""
    if not any(items):
        return None
    return b"\n".join([item or b"" for item in items]).decode()


def _percent(sql: str) -> str:
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
