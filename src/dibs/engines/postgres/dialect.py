"""How PostgreSQL says the statements: psycopg's parameters, lists as array literals, documents as lines.

psycopg's own list dumper is written in Python and was the larger part of the client's time; a literal and a cast are
not. JSON has no raw newline, so documents joined by newlines need no escaping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from functools import cache
from typing import Any

from dibs.engines.dialect import PARAMETER, Dialect
from dibs.operations.operation import Documents, Table

NUMBERS = {int, float}


class PostgresDialect(Dialect):
    """Statements for one schema of a PostgreSQL database."""

    def __init__(self, schema: str) -> None:
        super().__init__(__package__, f'"{schema}".', _percent)

    def encode(self, values: Mapping[str, Any], used: Set[str]) -> dict[str, Any]:
        """Lists become array literals, tables one parameter for each column."""
        encoded: dict[str, Any] = {}
        for name in used & values.keys():
            value = values[name]
            encode = ENCODERS.get(type(value))
            encoded[name] = encode(value) if encode else value
        if len(encoded) < len(used):
            for name, value in values.items():
                if type(value) is Table:
                    parameters = _parameters(name, value.columns, value.documents)
                    if not used.isdisjoint(parameters):
                        encoded.update(_columns(parameters, value) if value.rows else parameters)
        return encoded


@cache
def _parameters(name: str, columns: tuple[str, ...], documents: tuple[str, ...]) -> dict[str, str | None]:
    """The parameters of a table, in the order of its columns, with their values when it has no rows."""
    return {f"{name}_{column}": None if column in documents else "{}" for column in columns}


def _columns(parameters: Mapping[str, str | None], table: Table) -> dict[str, str | None]:
    columns: dict[str, str | None] = dict.fromkeys(parameters)
    for parameter, column, items in zip(parameters, table.columns, zip(*table.rows, strict=True), strict=False):
        columns[parameter] = lines(items) if column in table.documents else array(items)
    return columns


def array(items: Sequence[Any]) -> str:
    """An array literal of numbers, texts, times or nulls.

    >>> array([1, 2]), array(['a"b', None])
    ('{1,2}', '{"a\\\\"b",NULL}')
    """
    if len(items) == 1:
        return "{" + ELEMENTS.get(type(items[0]), str)(items[0]) + "}"
    kinds = set(map(type, items))
    if kinds <= NUMBERS:
        return "{" + ",".join(map(str, items)) + "}"
    if len(kinds) == 1:
        (kind,) = kinds
        return "{" + ",".join(map(ELEMENTS.get(kind, str), items)) + "}"
    return "{" + ",".join([ELEMENTS.get(type(item), str)(item) for item in items]) + "}"


def _text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


ELEMENTS: dict[type, Callable[[Any], str]] = {
    str: _text,
    datetime: lambda moment: f'"{moment.isoformat()}"',
    type(None): lambda _: "NULL",
}


def lines(items: Sequence[bytes | None]) -> str | None:
    """Documents as lines, an empty line for none; None when there is no document at all."""
    if not any(items):
        return None
    return b"\n".join([item or b"" for item in items]).decode()


def _documents(documents: Documents) -> str:
    return b"\n".join([item or b"null" for item in documents.items]).decode()


ENCODERS: dict[type, Callable[[Any], str]] = {list: array, bytes: bytes.decode, Documents: _documents}


def _percent(sql: str) -> str:
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
