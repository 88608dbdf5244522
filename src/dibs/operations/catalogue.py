"""What the database says of somebody else's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dibs.operations.operation import Conversation, Row, Statement, operation
from dibs.payload import decode

TABLES = frozenset({"r", "p"})  # ordinary and partitioned
USUAL = frozenset({"public", "main"})  # schemas that nobody names
NUMBERS = ("int", "real", "floa", "doub", "numeric", "decimal", "serial")  # anywhere in a type, as SQLite reads it


@dataclass(frozen=True, slots=True)
class Column:
    """One column, its type as it was declared."""

    name: str
    type: str
    nullable: bool
    labels: tuple[str, ...] = ()  # of an enum
    base: str = ""  # what a domain is made of
    readable: bool = True  # by this user
    writable: bool = True

    @property
    def plain(self) -> str:
        """Its type; of a domain, what that is made of."""
        return self.base or self.type

    @property
    def is_number(self) -> bool:
        """Whole or not."""
        return not self.labels and any(number in self.plain.lower() for number in NUMBERS)

    @property
    def is_blob(self) -> bool:
        """Bytes, in a file."""
        return not self.labels and "blob" in self.plain.lower()


@dataclass(frozen=True, slots=True)
class Index:
    """An index on plain columns; `where` says for which rows it holds, if not for all."""

    name: str
    columns: tuple[str, ...]
    unique: bool
    where: str | None
    valid: bool = True  # else its making has failed halfway


@dataclass(frozen=True, slots=True)
class Table:
    """A table, or what else is called so, as it is."""

    kind: str
    schema: str
    name: str
    readable: bool  # as a whole, by this user
    columns: Mapping[str, Column]
    indexes: Sequence[Index]

    @property
    def title(self) -> str:
        """What it is called by everybody: with its schema, unless that is the usual one."""
        return self.name if self.schema in USUAL else f"{self.schema}.{self.name}"

    @property
    def unique(self) -> list[frozenset[str]]:
        """The columns of each unique index that holds for all rows."""
        return [
            frozenset(index.columns) for index in self.indexes if index.unique and index.valid and index.where is None
        ]


@operation(reads=True, atomic=True)
def describe(parts: Sequence[str]) -> Conversation[Table | None]:
    """A table by its name, or by its schema and its name; None when there is none."""
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    rows = yield Statement("table", table=parts[-1], quoted=quoted, schema=parts[0] if len(parts) > 1 else None)
    if not rows:
        return None
    ((kind, schema, name, readable),) = rows
    fields = yield Statement("columns", table=name, quoted=quoted)
    indexes = yield Statement("indexes", table=name, quoted=quoted)
    return Table(
        kind,
        schema,
        name,
        bool(readable),
        {row[0]: _column(row) for row in fields},
        [
            Index(row[0], tuple(columns), bool(row[2]), row[3], bool(row[4]))
            for row in indexes
            if row[1] and None not in (columns := decode(row[1]))
        ],
    )


def _column(row: Row) -> Column:
    name, kind, nullable, labels, base, readable, writable = row
    return Column(name, kind, bool(nullable), tuple(decode(labels) or ()), base or "", bool(readable), bool(writable))
