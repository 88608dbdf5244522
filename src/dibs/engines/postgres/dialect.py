"""How PostgreSQL says the statements: psycopg's parameters, lists as array literals, documents as lines, many by COPY.

psycopg's own list dumper is written in Python and was the larger part of the client's time; a literal and a cast are
not. JSON has no raw newline, so documents joined by newlines need no escaping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, TypeAlias

from dibs.engines.dialect import PARAMETER, Dialect
from dibs.operations.operation import Documents, Queries, Rows, Statement, Table

NUMBERS = {int, float}
NONE = b"\0"  # is in no JSON, as it is
PIECE = 500  # rows
COPY_FROM = 500  # jobs; for fewer the second round trip costs more than COPY saves

_Column: TypeAlias = tuple[str, int, Callable[[Sequence[Any]], str | None]]
"""A parameter, the number of the column that it gets, and how that is written."""
_Columns: TypeAlias = tuple[str, list[_Column]]
"""A table, and what is wanted of it."""


class PostgresDialect(Dialect):
    """Statements for one schema of a PostgreSQL database."""

    def __init__(self, schema: str) -> None:
        super().__init__(__package__, f'"{schema}".', _percent)
        self.sources: dict[Set[str], tuple[list[str], list[_Columns]]] = {}

    def encode(self, values: Mapping[str, Any], used: Set[str]) -> dict[str, Any]:
        """Lists become array literals, tables one parameter for each column."""
        singles, tables = self.sources.get(used) or self._find(values, used)
        encoded: dict[str, Any] = {}
        for name in singles:
            value = values[name]
            encode = ENCODERS.get(type(value))
            encoded[name] = encode(value) if encode else value
        for table, wanted in tables:
            columns = [*zip(*values[table].rows, strict=True)]  # fewer than it has, where rows lack some at their end
            for parameter, index, write in wanted:
                encoded[parameter] = write(columns[index] if index < len(columns) else ())
        return encoded

    def _find(self, values: Mapping[str, Any], used: Set[str]) -> tuple[list[str], list[_Columns]]:
        """Where the parameters of a text come from: values of their own, and columns of tables."""
        tables = [
            (name, [part for part in _columns(name, value) if part[0] in used])
            for name, value in values.items()
            if type(value) is Table
        ]
        found = self.sources[used] = [*used & values.keys()], [table for table in tables if table[1]]
        return found

    def _own_steps(self, statement: Statement) -> Queries[Rows]:
        """Many jobs go by COPY: the server then writes whole pages of rows at once."""
        values = statement.values
        if statement.name not in ("add_many", "add_parts") or values["count"] < COPY_FROM or values["submits"]:
            return self._steps(statement)
        return self._copy(values, values.get("size"))

    def _copy(self, values: Mapping[str, Any], size: int | None) -> Queries[Rows]:
        (ask,) = self.steps["new_parts"] if size else self.steps["new_ids"]
        ((ids, now, run_at),) = yield ask.sql, self.encode(values, ask.uses)
        numbers = ids.encode().split(b",")
        same = [values[name] for name in ("queue", "rank", "type", "max_attempts", "tags")]
        later = values["delay"] or values["run_at"]
        if size:
            (copy,) = self.steps["copy_parts_later"] if later else self.steps["copy_parts"]
        else:
            (copy,) = self.steps["copy_later"] if later else self.steps["copy"]
        rows = copied(numbers, values["payloads"].items, [*same, now, run_at] if later else same, size)
        yield copy.sql.replace("%%", "%"), rows  # psycopg takes it as it is: it has no parameters
        return [(int(number),) for number in numbers]


def _columns(name: str, table: Table) -> list[_Column]:
    write = {column: lines if column in table.documents else array for column in table.columns}
    return [(f"{name}_{column}", index, write[column]) for index, column in enumerate(table.columns)]


def array(items: Sequence[Any]) -> str:
    """An array literal of numbers, texts, times or nulls.

    >>> array([1, 2]), array(['a"b', None])
    ('{1,2}', '{"a\\\\"b",NULL}')
    """
    if not items:
        return "{}"
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


def copied(
    numbers: Sequence[bytes], documents: Sequence[bytes | None], same: Sequence[Any], size: int | None = None
) -> Iterator[bytes]:
    """Rows as COPY reads them: a number, a document, and columns that are the same in all.

    In pieces, so that the server reads one while the next is written. With a size, pieces of that are parts of a batch:
    the first number of each comes third.

    >>> [*copied([b"1", b"2"], [b'"x"', None], ["a", 4])]
    [b'1\\t"x"\\ta\\t4\\n2\\t\\\\N\\ta\\t4\\n']
    """
    end = b"".join([b"\t" + _copied(value) for value in same]) + b"\n"
    step = size or PIECE
    for at in range(0, len(numbers), step):
        bodies = b"\n".join([item or NONE for item in documents[at : at + step]])
        bodies = bodies.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(NONE, b"\\N")
        last = b"\t" + numbers[at] + end if size else end
        yield last.join(map(b"\t".join, zip(numbers[at : at + step], bodies.split(b"\n"), strict=True))) + last


def _copied(value: Any) -> bytes:
    if value is None:
        return b"\\N"
    text = value if isinstance(value, bytes) else str(value).encode()
    for raw, escape in ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r")):
        text = text.replace(raw, escape)
    return text


def _percent(sql: str) -> str:
    return PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))
