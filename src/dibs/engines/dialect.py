"""From named statements to text: loads an engine's .sql files, and encodes values the way that engine reads them.

A name holds one step or several; their rows come one after another. `-- when x` before a step skips it when the
value x is empty, `-- unless x` when it is not; `-- each x` executes it once for each row of the table x, in one go;
`-- gives x` adds the first column of its rows to the list x (nulls left out), for the steps that follow; `-- notes x`
does so too, and keeps its rows to itself. `-- needs x`: only where the database knows x; `-- lacks x`: only where not.
Parameters are written `:name`; `dibs.` stands for the schema or the prefix.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from dibs.operations.operation import Compiled, Conversation, Operation, Queries, Row, Rows, Statement, Table

T = TypeVar("T")

NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
MARK = re.compile(r"^-- (when|unless|each|gives|notes|needs|lacks) (\w+)$", re.MULTILINE)
COMMENT = re.compile(r"^\s*--.*$|\s+-- .*$", re.MULTILINE)
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
OWN = re.compile(r"\bdibs\.(?=[a-z_%])")


@dataclass(frozen=True, slots=True)
class Step:
    """One text to execute."""

    sql: str
    when: str = ""  # not if this value is empty
    unless: str = ""  # only if this value is empty
    each: str = ""  # once for each row of this table
    gives: str = ""  # the list that the first column of its rows is added to
    notes: str = ""  # the same, and its rows are no part of the answer
    needs: str = ""  # only where the database is able to do this
    lacks: str = ""  # only where it is not
    uses: frozenset[str] = frozenset()  # its parameters


class Dialect(ABC):
    """How one engine says the named statements."""

    def __init__(
        self, package: str, own: str, rewrite: Callable[[str], str] = str, able: Set[str] = frozenset()
    ) -> None:
        self.own = own
        self.steps: dict[str, Sequence[Step]] = dict(_loaded(package, own, rewrite, able))
        self.given = {name: _given(steps) for name, steps in self.steps.items()}
        self.straight = {name: _texts(steps) for name, steps in self.steps.items() if all(map(_is_straight, steps))}

    def script(self, sql: str) -> str:
        """A migration's text for this schema or prefix."""
        return _owned(sql, self.own)

    def in_one_step(self, name: str) -> bool:
        """Whether a statement of this name is a single text, with nothing to decide."""
        return name in self.straight and len(self.straight[name][0]) == 1

    @abstractmethod
    def encode(self, values: Mapping[str, Any], used: Set[str]) -> dict[str, Any]:
        """The values that are used, as the driver takes them; an operation may offer more than one engine needs."""

    def records(self, table: Table) -> Sequence[Row]:
        """The rows of a table as the driver takes them, for a text that is executed once for each."""
        return table.rows

    def speak(self, operation: Operation[T] | Conversation[T], *, own: bool = False) -> Queries[T]:
        """The same conversation, in text; for a connection of our own there may be a faster one."""
        steps = self._own_steps if own else self._steps
        conversation = iter(operation)
        rows: Rows | None = None
        while True:
            try:
                statement: Statement = conversation.send(rows)  # type: ignore[arg-type]  # None starts a generator
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the generator's return value
            rows = yield from steps(statement)

    def _steps(self, statement: Statement) -> Queries[Rows]:
        """The texts of one statement; all their rows."""
        values = statement.values
        rows: Rows = []
        if type(statement) is Statement and statement.name in self.straight:  # most: nothing to decide
            texts, used = self.straight[statement.name]
            encoded = self.encode(values, used)
            for text in texts:
                rows += yield text, encoded
            return rows
        encoded = {}
        steps, names = self._known(statement)
        for name in names:
            values[name] = []
        for step in steps:
            if step.each:
                if values[step.each]:
                    yield step.sql, self.records(values[step.each])
            elif (not step.when or values[step.when]) and not (step.unless and values[step.unless]):
                encoded.update(self.encode(values, step.uses.difference(encoded)))
                came = yield step.sql, encoded
                if not step.notes:
                    rows += came
                if came and (given := step.gives or step.notes):
                    values[given] += [row[0] for row in came if row[0] is not None]
                    encoded.pop(given, None)
        return rows

    def _own_steps(self, statement: Statement) -> Queries[Rows]:
        return self._steps(statement)

    def _known(self, statement: Statement) -> tuple[Sequence[Step], Iterable[str]]:
        """Its steps, and the lists that they hand each other."""
        if isinstance(statement, Compiled):
            return statement.steps, _given(statement.steps)
        return self.steps[statement.name], self.given.get(statement.name, ())


def _is_straight(step: Step) -> bool:
    return not (step.when or step.unless or step.each or step.gives or step.notes)


def _texts(steps: Sequence[Step]) -> tuple[list[str], frozenset[str]]:
    """The texts of steps, and the parameters of all of them."""
    return [step.sql for step in steps], frozenset().union(*(step.uses for step in steps))


def _given(steps: Sequence[Step]) -> set[str]:
    return {step.gives or step.notes for step in steps} - {""}


@cache
def _loaded(package: str, own: str, rewrite: Callable[[str], str], able: Set[str]) -> Mapping[str, Sequence[Step]]:
    """Read once in a process: it takes 10 ms."""
    return {
        name: tuple([step for step in _steps(body, own, rewrite) if _fits(step, able)])
        for name, body in _statements(package)
    }


def _fits(step: Step, able: Set[str]) -> bool:
    return (not step.needs or step.needs in able) and step.lacks not in able


def _owned(sql: str, own: str) -> str:
    return OWN.sub(lambda _: own, sql)


def _statements(package: str) -> Iterator[tuple[str, str]]:
    for file in sorted(files(package).joinpath("sql").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            _, *parts = NAME.split(file.read_text())
            yield from zip(parts[::2], parts[1::2], strict=True)


def _steps(body: str, own: str, rewrite: Callable[[str], str]) -> Iterator[Step]:
    for part in re.split(r";\s*$", body, flags=re.MULTILINE):
        sql = COMMENT.sub("", part).strip()
        if sql:
            yield Step(rewrite(_owned(sql, own)), **dict(MARK.findall(part)), uses=frozenset(PARAMETER.findall(sql)))
