"""How SQLite says the statements: its own named parameters, lists and tables as one JSON document, times as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from dibs.engines.dialect import Dialect
from dibs.operations.operation import Documents, Grouped, Row, Table

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.json.Encoder(enc_hook=lambda value: _plain(value)).encode


class SqliteDialect(Dialect):
    """Statements for the tables with one prefix."""

    def __init__(self, prefix: str = "dibs_", able: Set[str] = frozenset()) -> None:
        super().__init__(__package__, prefix, able=able)

    def encode(self, values: Mapping[str, Any], used: Set[str]) -> dict[str, Any]:
        """Lists, pairs and tables become JSON, for json_each."""
        encoded: dict[str, Any] = {}
        for name in used:
            value = values[name]
            encode = ENCODERS.get(type(value))
            encoded[name] = encode(value) if encode else value
        return encoded

    def records(self, table: Table) -> Sequence[Row]:
        """Documents become texts: SQLite would store bytes as a blob."""
        return _records(table)


def _records(table: Table) -> Sequence[Row]:
    if not table.documents:
        return table.rows
    return [tuple([_plain(item) for item in row]) for row in table.rows]


def micros(moment: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return value.decode()
        case datetime():
            return micros(value)
        case _:
            return value


def _json(value: Any) -> str:
    return _encode(value).decode()


@lru_cache(64)
def _grouped(pairs: tuple[Row, ...]) -> str:
    groups: dict[Any, list[Any]] = {}
    for first, second, *_ in pairs:
        groups.setdefault(first, []).append(second)
    return _json(groups)


ENCODERS: dict[type, Callable[[Any], Any]] = {
    bytes: bytes.decode,
    list: _json,
    dict: _json,
    Table: lambda table: _json(_records(table)),
    Documents: lambda documents: "[" + b",".join([item or b"null" for item in documents.items]).decode() + "]",
    Grouped: lambda grouped: _grouped(tuple(grouped.pairs)),  # the same in every claim
    datetime: micros,
}
