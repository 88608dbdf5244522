"""What the database says of a table, and whether that fits what its user has said: a clear error before it starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dibs.adopted.mapping import Adoption
from dibs.errors import NotAdoptable
from dibs.operations.catalogue import TABLES, Column, Table, describe
from dibs.operations.operation import Conversation, operation

LOOSE = ("interval", "money", "xml", "an array", "a range", "a composite")
FLOATING = re.compile(r"\b(real|double|float\d*)\b", re.IGNORECASE)  # a file says it in any case
KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True, slots=True)
class Found:
    """Both tables of an adoption."""

    table: Table
    output: Table | None


@operation(reads=True, atomic=True)
def inspect(adoption: Adoption) -> Conversation[Found]:
    """Look, and compare."""
    found = yield from tables(adoption)
    _has(found.table, adoption.columns)
    return found


@operation(reads=True, atomic=True)
def tables(adoption: Adoption) -> Conversation[Found]:
    """The same of tables that may still lack what can be added to them."""
    table = usable(adoption.table, (yield from describe(adoption.table)))
    named(adoption, table)
    allowed(adoption, table)
    _check(adoption, table)
    if adoption.output is None:
        return Found(table, None)
    output = usable(adoption.output.table, (yield from describe(adoption.output.table)))
    _has(output, adoption.output.columns)
    readable(output, adoption.output.columns)
    if len(adoption.output.columns) != len(adoption.key):
        raise NotAdoptable(adoption.name, "output names as many columns as the key has, in the same order")
    return Found(table, output)


def usable(parts: Sequence[str], table: Table | None) -> Table:
    """A table that can be worked on, or a NotAdoptable that says why not."""
    name = ".".join(parts)
    if table is None:
        raise NotAdoptable(name, "there is no such table. Names are taken as they are written, capitals included")
    if table.kind not in TABLES:
        kind = KINDS.get(table.kind, "no table")
        raise NotAdoptable(name, f"it is {kind}, whose rows cannot be locked. Adopt the table beneath")
    return table


def allowed(adoption: Adoption, table: Table) -> None:
    """Rows are read whole; of their columns those are written that are kept up to date."""
    written = [adoption.status, *adoption.kept.values()]
    if table.readable and all(table.columns[name].writable for name in written if name in table.columns):
        return
    need = f"grant select on it, and update of {', '.join(written)}"
    raise NotAdoptable(adoption.name, f"this user may not read its rows and write their status: {need}")


def readable(table: Table, names: Sequence[str]) -> None:
    """Of an output only that is read which names the row."""
    if hidden := [name for name in names if name in table.columns and not table.columns[name].readable]:
        raise NotAdoptable(table.name, f"this user may not read its columns {', '.join(hidden)}: grant select")


def named(adoption: Adoption, table: Table) -> None:
    """A table has one name: it stands for the table wherever a row's owner is written down."""
    if adoption.name != table.title:
        raise NotAdoptable(
            adoption.name,
            f"it is called differently, and under two names its rows would have two owners: say {table.title!r}",
        )


def _check(adoption: Adoption, table: Table) -> None:
    _has(table, (*adoption.key, *adoption.order_by))
    if not any(unique <= frozenset(adoption.key) for unique in table.unique):
        raise NotAdoptable(
            adoption.name,
            f"{', '.join(adoption.key)} is neither its primary key nor has it a unique index: a row could not be named",
        )
    if nullable := [name for name in adoption.key if table.columns[name].nullable]:
        raise NotAdoptable(adoption.name, f"its key may be null: {', '.join(nullable)}. Make it not null")
    if blobs := [name for name in adoption.key if table.columns[name].is_blob]:
        raise NotAdoptable(adoption.name, f"its key {', '.join(blobs)} is a blob, which cannot be written as text")
    for name in adoption.key:
        kind = table.columns[name].plain
        if kind in LOOSE or FLOATING.search(kind):
            said = f"its key {name} is {kind}, whose text hangs on settings of the session: it cannot name a row"
            raise NotAdoptable(adoption.name, said)
    if adoption.status in table.columns:
        _check_words(adoption, table.columns[adoption.status])


def _check_words(adoption: Adoption, status: Column) -> None:
    words = adoption.words
    if status.labels and (missing := [str(word) for word in words.values() if word not in status.labels]):
        known = ", ".join(status.labels)
        raise NotAdoptable(
            adoption.name, f"its status is an enum without {', '.join(dict.fromkeys(missing))}; it has {known}"
        )
    number = next(iter(words.values()))
    if isinstance(number, int) != status.is_number:
        said, kind = ("numbers", status.type) if isinstance(number, int) else ("texts", status.type)
        raise NotAdoptable(adoption.name, f"the words are {said}, and the column {status.name} is of the type {kind}")
    limit = length_limit(status.plain)
    if limit and (long := [str(word) for word in words.values() if len(str(word)) > limit]):
        raise NotAdoptable(
            adoption.name, f"{status.name} is a {status.type}, too short for {', '.join(dict.fromkeys(long))}"
        )


def _has(table: Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.columns:
            known = {column.lower(): column for column in table.columns}
            close = get_close_matches(name.lower(), known, 1)
            hint = f"Did you mean {known[close[0]]!r}?" if close else f"It has {', '.join(table.columns)}."
            raise NotAdoptable(table.name, f"it has no column {name!r}. {hint}")


def length_limit(kind: str) -> int | None:
    """How many characters fit.

    >>> length_limit("character varying(20)"), length_limit("text")
    (20, None)
    """
    name, _, rest = kind.partition("(")
    return int(rest.rstrip(")")) if "char" in name.lower() and rest.rstrip(")").isdigit() else None
