"""Our own statements on a connection of our own: prepared once, values as text, columns read the same way each time.

A cursor of psycopg decides all of that anew for every statement, because it may be any statement: the types of the
values, whether to prepare, how to read each column. That was half of the client's time in a small turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from itertools import count
from time import monotonic
from typing import Any, NamedTuple, TypeAlias, TypeVar

from psycopg import AsyncConnection, Connection, abc, errors, pq
from psycopg.adapt import Transformer
from psycopg.waiting import Ready, Wait

from dibs.engines.postgres.errors import TimedOut
from dibs.operations.operation import Rows

T = TypeVar("T")
Asking: TypeAlias = Generator[Any, Any, T]
"""Says what it waits for, is told what is ready, and ends with an answer."""

PERCENT = re.compile(r"%(?:%|\((\w+)\)s)")  # as psycopg writes them: a percent sign, or a parameter
BINARY = pq.Format.BINARY
FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)

TEXTS: dict[type, Callable[[Any], bytes | None]] = {
    int: b"%d".__mod__,
    str: str.encode,
    float: lambda number: repr(number).encode(),
    bool: lambda truth: b"true" if truth else b"false",
    datetime: lambda moment: moment.isoformat().encode(),
    type(None): lambda _: None,
}


class Prepared(NamedTuple):
    """A statement that the server knows by a name, and how to read its rows."""

    name: bytes
    parameters: tuple[str, ...]  # in the order of their numbers
    reader: abc.Transformer


class Statements:
    """The statements of one connection. Their types are those that the text gives them; values come as text."""

    def __init__(self, raw: Connection[Any] | AsyncConnection[Any]) -> None:
        self.raw, self.pgconn = raw, raw.pgconn
        self.known: dict[str, Prepared] = {}
        self.numbers = count()  # one that was cut off while it was prepared may have its name already
        self.patience, self.until = 0.0, 0.0  # of what is being asked

    def ask(self, sql: str, values: Mapping[str, Any], patience: float) -> Asking[Rows]:
        """Execute one and read its rows, within so many seconds; to be waited for by the connection."""
        self.patience, self.until = patience, monotonic() + patience
        statement = self.known.get(sql) or (yield from self._prepare(sql))
        texts = [TEXTS[type(value)](value) for value in map(values.__getitem__, statement.parameters)]
        self.pgconn.send_query_prepared(statement.name, texts, result_format=BINARY)
        result = yield from self._answer()
        reader = statement.reader
        reader.set_pgresult(result, set_loaders=False)
        rows = reader.load_rows(0, result.ntuples, tuple)
        reader.set_pgresult(None, set_loaders=False)  # it may be large
        return rows

    def _prepare(self, sql: str) -> Asking[Prepared]:
        text, parameters = numbered(sql)
        name = b"dibs_%d" % next(self.numbers)
        self.pgconn.send_prepare(name, text.encode())
        yield from self._answer()
        self.pgconn.send_describe_prepared(name)
        reader: abc.Transformer = Transformer(self.raw)
        reader.set_pgresult((yield from self._answer()), format=BINARY)
        statement = self.known[sql] = Prepared(name, parameters, reader)
        return statement

    def _answer(self) -> Asking[Any]:
        """What the server says to what was sent. libpq is asked only for what has arrived: it would wait for ever."""
        pgconn = self.pgconn
        while pgconn.flush():
            if (yield from self._ready(Wait.RW)) & Ready.R:
                pgconn.consume_input()
        result = None
        while True:
            while pgconn.is_busy():
                yield from self._ready(Wait.R)
                pgconn.consume_input()
            more = pgconn.get_result()
            if more is None:
                break
            result = more
        if result is None or result.status not in FINE:
            raise errors.error_from_result(result) if result else errors.OperationalError("the server said nothing")
        return result

    def _ready(self, wanted: Wait) -> Asking[int]:
        """Wait until the connection is ready; whoever waits comes back now and then even if it is not."""
        while True:
            ready: int = yield wanted
            if ready:
                return ready
            if monotonic() > self.until:
                raise TimedOut(f"no answer within {self.patience:g} s")


def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """A text with numbers for its parameters, as the server has them, and their names.

    >>> numbered("select %(a)s, %(b)s, %(a)s, '50 %%'")
    ("select $1, $2, $1, '50 %'", ('a', 'b'))
    """
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}" if found[1] else "%"

    return PERCENT.sub(number, sql), tuple(numbers)
