"""The function that works on the rows of an adopted table, as a task: its one argument is the row."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from dibs.adopted.mapping import Adoption
from dibs.errors import InvalidOption, InvalidPayload
from dibs.job import Claimed
from dibs.operations.adopted import printable, taken_of
from dibs.operations.catalogue import Column
from dibs.row import Row
from dibs.task import Declared, Options

_decode = msgspec.json.Decoder(float_hook=Decimal).decode

PRECISION = re.compile(r"\(\d+(,-?\d+)?\)")

READERS: dict[str, Callable[[Any], Any]] = {
    "numeric": Decimal,
    "real": float,
    "double precision": float,
    "timestamp with time zone": datetime.fromisoformat,
    "timestamp without time zone": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time without time zone": time.fromisoformat,
    "uuid": UUID,
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
}


class RowSignature:
    """Of a function that takes a row."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        if len(parameters) != 1 or parameters[0].kind in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            raise InvalidOption("process", f"{function.__qualname__} must take one argument, the row")
        self.name = parameters[0].name
        self.names = frozenset({self.name})
        self.readers: Mapping[str, Callable[[Any], Any]] = {}

    def load(self, document: bytes | str | None) -> dict[str, Any]:
        """The row, in types of Python."""
        row = _row_of(document)
        return {self.name: Row({name: self._read(name, value) for name, value in row.items()})}

    def dump(self, arguments: dict[str, Any], limit: int = 0) -> bytes:
        """Rows are added to their own table."""
        raise InvalidPayload("A row is not enqueued: insert it into its table.")

    def _read(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        read = self.readers.get(name)
        if read is not None:
            try:
                return read(value)
            except ValueError:
                return value  # an infinite time, a year before Christ
        return _plain(value)


def _plain(value: Any) -> Any:
    """Numbers as they usually are; only columns of exact numbers keep theirs exact."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _row_of(document: bytes | str | None) -> dict[str, Any]:
    """The row of a claim's payload."""
    taken = _decode(document or b"{}")
    if problem := taken.get("problem"):
        raise InvalidPayload(f"The row cannot be read: {problem}")
    row: dict[str, Any] = taken.get("row", {})
    return row


def _from_file(value: Any) -> Any:
    """SQLite keeps whatever was put into a column: only bytes and numbers without end come as an object."""
    if not isinstance(value, dict):
        return _plain(value)
    return float(value["real"]) if "real" in value else bytes.fromhex(value["bytes"])


def readers(columns: Mapping[str, Column], engine: str) -> dict[str, Callable[[Any], Any]]:
    """How the values of these columns become values of Python."""
    if engine == "sqlite":
        return dict.fromkeys(columns, _from_file)
    kinds = {name: PRECISION.sub("", column.plain) for name, column in columns.items()}
    return {name: READERS[kind] for name, kind in kinds.items() if kind in READERS}


class Processor(Declared):
    """What runs for each row. Its name is that of the table."""

    takes_rows = True

    def __init__(self, function: Callable[..., Any], adoption: Adoption, **said: Any) -> None:
        signature = RowSignature(function)
        options = Options(queue=adoption.name, max_attempts=adoption.max_attempts)
        super().__init__(function, name=adoption.name, options=options, **said)
        self.signature = signature  # type: ignore[assignment]  # it loads, which is all that is asked of it here

    def label(self, job: Claimed) -> str:
        """The row itself: its table and its key, on one line and without what could be taken for more of the log."""
        return printable(f"{self.name} {', '.join(map(str, taken_of(job).key))}")

    def row_key(self, job: Claimed) -> Sequence[Any]:
        """What names the row of this job."""
        return taken_of(job).key
