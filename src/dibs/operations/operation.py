"""What an operation is: a generator that yields statements, receives rows and returns a value. And how one is carried.

It contains no BEGIN, no COMMIT, no `try`, no user code and no driver. The engine's dialect turns each statement into
text; `run` and `arun` carry the text to a connection, anybody's, sync or async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]
Values: TypeAlias = Any
"""Of a text to execute: by name; for a text to execute once for each of many rows, a list of those; for COPY, its bytes
piece by piece."""
Query: TypeAlias = tuple[str, Values]
Execute: TypeAlias = Callable[[str, Values], Rows]
AsyncExecute: TypeAlias = Callable[[str, Values], Awaitable[Rows]]
Queries: TypeAlias = Generator[Query, Rows, T]


class Statement:
    """A statement by its name in the engine's .sql files, and its values by name."""

    __slots__ = ("name", "values")

    def __init__(self, name: str, /, **values: Any) -> None:
        self.name, self.values = name, values


class Compiled(Statement):
    """A statement about somebody else's table, whose steps were compiled for it. It offers more than each step uses."""

    __slots__ = ("steps",)

    def __init__(self, name: str, steps: Sequence[Any], /, **values: Any) -> None:
        super().__init__(name, **values)
        self.steps = steps


class Table(NamedTuple):
    """Rows on their way in; what they lack at the end is null. `documents` names the columns that hold encoded JSON."""

    columns: tuple[str, ...]
    rows: Sequence[Row]
    documents: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True, slots=True)
class Documents:
    """Encoded JSON values on their way in, one per row."""

    items: Sequence[bytes | None]


class Grouped(NamedTuple):
    """Pairs on their way in, as one document: the second items by the first."""

    pairs: Sequence[Row]


Conversation: TypeAlias = Generator[Statement, Rows, T]


class Operation(Generic[T]):
    """A conversation that can be started, and started anew when the first try was cut off.

    `repeatable`: done twice it does no harm. `atomic`: its statements must commit together. `reads`: it writes nothing.
    `restartable`: it has everything that it needs to begin anew. `only`: the one statement that it says.
    """

    __slots__ = ("atomic", "name", "only", "reads", "repeatable", "restartable", "start")

    def __init__(
        self,
        start: Callable[[], Conversation[T]],
        name: str,
        *,
        repeatable: bool,
        atomic: bool,
        reads: bool,
        restartable: Callable[[], bool] = lambda: True,
        only: str = "",
    ) -> None:
        self.start, self.name, self.repeatable, self.atomic, self.reads = start, name, repeatable, atomic, reads
        self.restartable, self.only = restartable, only

    def __iter__(self) -> Conversation[T]:
        return self.start()


def operation(
    *, repeatable: bool = True, atomic: bool = False, reads: bool = False, only: str = ""
) -> Callable[[Callable[P, Conversation[T]]], Callable[P, Operation[T]]]:
    """Mark a generator function as an operation."""

    def mark(function: Callable[P, Conversation[T]]) -> Callable[P, Operation[T]]:
        @wraps(function)
        def build(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
            return Operation(
                lambda: function(*args, **kwargs),
                function.__name__,
                repeatable=repeatable,
                atomic=atomic,
                reads=reads,
                only=only,
            )

        return build

    return mark


def run(execute: Execute, queries: Queries[T]) -> T:
    """Carry a conversation over a sync connection."""
    rows: Rows | None = None
    while True:
        try:
            query = queries.send(rows)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's return value
        rows = execute(*query)


async def arun(execute: AsyncExecute, queries: Queries[T]) -> T:
    """Carry a conversation over an async connection."""
    rows: Rows | None = None
    while True:
        try:
            query = queries.send(rows)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's return value
        rows = await execute(*query)
