"""What the database says of somebody else's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dibs.operations.operation import Conversation, Statement, operation
from dibs.payload import decode

TABLES = frozenset({"r", "p"})  # ordinary and partitioned
NUMBERS = ("int", "numeric", "decimal", "real", "double", "float", "serial", "small", "big", "tiny", "medium")


@dataclass(frozen=True, slots=True)
class Column:
    """One column, its type as it was declared."""

    name: str
    type: str
    nullable: bool
    labels: tuple[str, ...] = ()  # of an enum

    @property
    def is_number(self) -> bool:
        """Whole or not."""
        return self.type.lower().startswith(NUMBERS)


@dataclass(frozen=True, slots=True)
class Table:
    """A table, or what else is called so, as it is."""

    kind: str
    schema: str
    name: str
    allowed: bool  # to read and to update it
    columns: Mapping[str, Column]
    unique: Sequence[frozenset[str]]  # the columns of each unique index that holds for all rows


@operation(reads=True, atomic=True)
def describe(parts: Sequence[str]) -> Conversation[Table | None]:
    """A table by its name, or by its schema and its name; None when there is none."""
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    rows = yield Statement("table", table=parts[-1], quoted=quoted)
    if not rows:
        return None
    ((kind, schema, name, allowed),) = rows
    columns = yield Statement("columns", table=name, quoted=quoted)
    unique = yield Statement("unique_columns", table=name, quoted=quoted)
    return Table(
        kind,
        schema,
        name,
        bool(allowed),
        {row[0]: Column(row[0], row[1], bool(row[2]), tuple(decode(row[3]) or ())) for row in columns},
        [frozenset(decode(row[0])) for row in unique if row[0]],
    )
