"""What a table should get before it is worked on: columns that it lacks, and indexes. Plain SQL, with a reason each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from dibs.adopted import postgres_words, sqlite_words
from dibs.adopted.conditions import holds
from dibs.adopted.inspect import Found
from dibs.adopted.mapping import Adoption, Word
from dibs.errors import NotAdoptable
from dibs.job import JobState
from dibs.operations.catalogue import Table

LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Improvement:
    """One statement, and why it is worth it."""

    sql: str
    why: str
    waits: bool = False  # for all transactions that are open


class Plan:
    """For one table on one kind of database."""

    def __init__(self, adoption: Adoption, found: Found, engine: str, existing: Word | None = None) -> None:
        self.adoption, self.found, self.existing = adoption, found, existing
        self.is_sqlite = engine == "sqlite"
        self.quoted: Callable[[str], str] = sqlite_words.quoted
        self.literal: Callable[[Word], str] = sqlite_words.literal if self.is_sqlite else _literal

    def improvements(self) -> list[Improvement]:
        """What it lacks."""
        return [*self._columns(), *self._indexes()]

    def _columns(self) -> Iterator[Improvement]:
        adoption, there = self.adoption, self.found.table.columns
        if adoption.status not in there:
            yield from self._status()
        moment = "timestamp" if self.is_sqlite else "timestamptz"
        kinds = {
            "started_at": (
                moment,
                "when an attempt began: without it, what others left behind is known only by our own time",
            ),
            "finished_at": (moment, "when a row was done"),
            "worker": ("text", "who has a row, or had it last"),
            "error": ("text", "why a row failed"),
            "attempts": ("integer not null default 0", "how often a row was begun"),
        }
        for use, name in adoption.kept.items():
            if name not in there:
                kind, why = kinds[use]
                yield self._column(name, kind, f"{use}: {why}")
        if adoption.priority and adoption.priority not in there:
            yield self._column(adoption.priority, "integer not null default 0", "priority: higher is taken first")

    def _column(self, name: str, kind: str, why: str) -> Improvement:
        return Improvement(f"alter table {self._table(self.found.table)} add column {self.quoted(name)} {kind}", why)

    def _status(self) -> Iterator[Improvement]:
        """Rows that are there already must not be queued by accident."""
        adoption = self.adoption
        if self.existing is None:
            words = ", ".join(str(word) for word in dict.fromkeys(adoption.words.values()))
            raise NotAdoptable(
                adoption.name,
                f"it has no column {adoption.status!r} yet. Which word do rows get that are there already ({words})? "
                f"Say --existing {adoption.words[JobState.SUCCESSFUL]} if they are done, "
                f"--existing {adoption.words[JobState.PENDING]} if all of them are to be worked on",
            )
        if self.existing not in adoption.words.values():
            raise NotAdoptable(adoption.name, f"{self.existing!r} is none of its words")
        kind = "integer" if isinstance(self.existing, int) else "text"
        column = f"{kind} not null default {self.literal(self.existing)}"
        why = f"the status: rows that are there already become {self.existing!r}"
        if self.is_sqlite:
            pending = adoption.words[JobState.PENDING]
            yield self._column(adoption.status, column, f"{why}, and so do new ones that do not say {pending!r}")
            return
        pending = self.literal(adoption.words[JobState.PENDING])
        then = f"alter column {self.quoted(adoption.status)} set default {pending}"
        yield self._column(adoption.status, f"{column}, {then}", f"{why}, new ones wait to be worked on")

    def _indexes(self) -> Iterator[Improvement]:
        adoption, table = self.adoption, self.found.table
        order = list(dict.fromkeys((*adoption.order_by, *adoption.key)))
        columns = [*([adoption.priority] if adoption.priority else []), *order]
        down = "" if self.is_sqlite else " nulls last"
        shown = [f"{self.quoted(name)}{f' desc{down}' if name == adoption.priority else ''}" for name in columns]
        if not self._has(table, columns, JobState.PENDING):
            yield from self._index(
                table, "waiting", shown, JobState.PENDING, "a claim reads the next rows, however many are done"
            )
        if not self._has(table, list(adoption.key), JobState.RUNNING):
            keys = [self.quoted(name) for name in adoption.key]
            yield from self._index(
                table, "running", keys, JobState.RUNNING, "what was left behind is found without reading the table"
            )
        output = self.found.output
        if adoption.output and output and frozenset(adoption.output.columns) not in output.unique:
            names = [self.quoted(name) for name in adoption.output.columns]
            yield from self._index(output, "once", names, None, "the database itself refuses a second output for a row")

    def _has(self, table: Table, columns: Sequence[str], state: JobState) -> bool:
        """An index on these columns for the rows in this state, whatever it is called."""
        status, word, meant = self.adoption.status, self.adoption.words[state], self.adoption.where
        return any(
            list(index.columns[: len(columns)]) == list(columns)
            and index.valid
            and index.where is not None
            and holds(index.where, status, word, meant, any_case=self.is_sqlite)
            for index in table.indexes
        )

    def _index(
        self, table: Table, use: str, columns: Sequence[str], state: JobState | None, why: str
    ) -> Iterator[Improvement]:
        unique = "unique " if state is None else ""
        now = "" if self.is_sqlite or table.kind == "p" else "concurrently "
        name = self.quoted(index_name(table.name, use))
        where = ""
        if state is not None:
            where = f" where {self.quoted(self.adoption.status)} = {self.literal(self.adoption.words[state])}"
        if there := next((index for index in table.indexes if index.name == index_name(table.name, use)), None):
            halfway = "its making has failed halfway: it is of no use"
            other = "it is for other rows or columns than those that are meant now"
            drop = f"drop index {now}if exists {self.quoted(table.schema)}.{name}"
            yield Improvement(drop, other if there.valid else halfway, waits=bool(now))
        sql = f"create {unique}index {now}if not exists {name} on {self._table(table)} ({', '.join(columns)}){where}"
        yield Improvement(sql, why, waits=bool(now))

    def _table(self, table: Table) -> str:
        return self.quoted(table.name) if self.is_sqlite else f"{self.quoted(table.schema)}.{self.quoted(table.name)}"


def _literal(word: Word) -> str:
    return postgres_words.literal(word).replace("%%", "%")


def index_name(table: str, use: str) -> str:
    """Within what PostgreSQL keeps of a name, and still one for each table.

    >>> index_name("stickers", "waiting")
    'stickers_dibs_waiting'
    """
    name = f"{table}_dibs_{use}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    return f"dibs_{use}_{sha256(table.encode()).hexdigest()[:16]}"
