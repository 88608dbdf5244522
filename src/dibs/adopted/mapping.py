"""What a user says of a table of theirs: its key, its status column and words, and columns to be kept up to date.

Checked here as far as that goes without looking at the table; inspect.py does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from dibs.errors import InvalidOption
from dibs.job import JobState, checked_name, checked_number
from dibs.task import MAX_ATTEMPTS

Word: TypeAlias = str | int
Names: TypeAlias = str | Sequence[str]

REQUIRED = (JobState.PENDING, JobState.RUNNING, JobState.SUCCESSFUL, JobState.FAILED)
OTHERWISE = {
    JobState.RETRY: JobState.PENDING,
    JobState.CANCELLED: JobState.FAILED,
}  # whose word they take if they have none
LONGEST = 86400 * 30
MAX_BATCH = 1_000
LONGEST_WORD, LONGEST_CONDITION = 1_000, 10_000


@dataclass(frozen=True, slots=True)
class Output:
    """Where the work on a row leaves its trace: a table, and the columns that name the row."""

    table: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adoption:
    """One table. Only its name, its key, its status column and the words of that are required."""

    table: tuple[str, ...]  # its name, or its schema and its name
    key: tuple[str, ...]
    status: str
    words: Mapping[JobState, Word]
    order_by: tuple[str, ...] = ()
    priority: str | None = None  # higher first
    started_at: str | None = None
    finished_at: str | None = None
    worker: str | None = None
    error: str | None = None
    attempts: str | None = None
    where: str | None = None  # which rows are meant at all, in SQL
    output: Output | None = None
    stuck_after: float = 300
    batch: int = 5
    poll: float = 1
    max_attempts: int = 3
    kept: Mapping[str, str] = field(init=False)  # the further columns, by what they are for

    def __post_init__(self) -> None:
        named = {name: getattr(self, name) for name in ("started_at", "finished_at", "worker", "error", "attempts")}
        object.__setattr__(self, "kept", MappingProxyType({use: name for use, name in named.items() if name}))
        used = [*self.key, self.status, *self.kept.values()]
        for name in used:
            if used.count(name) > 1:
                raise InvalidOption("adopt", f"the column {name!r} is named twice")

    @property
    def name(self) -> str:
        """Of the table, as people write it: also the queue, and the type of the jobs."""
        return ".".join(self.table)

    @property
    def left_behind(self) -> tuple[JobState, ...]:
        """The states in which a row without a job was left by somebody: nobody else would take it again."""
        own = self.words[JobState.RETRY] != self.words[JobState.PENDING]
        return (JobState.RUNNING, JobState.RETRY) if own else (JobState.RUNNING,)

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are named."""
        wanted = [
            *self.key,
            self.status,
            *self.order_by,
            *self.kept.values(),
            *([self.priority] if self.priority else []),
        ]
        return tuple(dict.fromkeys(wanted))


def adoption(
    table: str,
    *,
    key: Names,
    status: str,
    states: Mapping[str, Word],
    order_by: Names = (),
    priority: str | None = None,
    started_at: str | None = None,
    finished_at: str | None = None,
    worker: str | None = None,
    error: str | None = None,
    attempts: str | None = None,
    where: str | None = None,
    output: tuple[str, Names] | None = None,
    stuck_after: float = 300,
    batch: int = 5,
    poll: float = 1,
    max_attempts: int = 3,
) -> Adoption:
    """What was said, checked."""
    single = dict(
        priority=priority, started_at=started_at, finished_at=finished_at, worker=worker, error=error, attempts=attempts
    )
    return Adoption(
        table=_table("table", table),
        key=_names("key", key),
        status=_identifier("status", status),
        words=_words(states),
        order_by=_names("order_by", order_by) if order_by else (),
        **{use: None if name is None else _identifier(use, name) for use, name in single.items()},
        where=_condition(where),
        output=_output(output),
        stuck_after=checked_number("stuck_after", stuck_after, 1, LONGEST, whole=False),
        batch=int(checked_number("batch", batch, 1, MAX_BATCH)),
        poll=checked_number("poll", poll, 0.05, 3600, whole=False),
        max_attempts=int(checked_number("max_attempts", max_attempts, 1, MAX_ATTEMPTS)),
    )


def _table(option: str, name: str) -> tuple[str, ...]:
    """`stickers`, or `shop.stickers`: split at the dot, case kept."""
    checked_name(option, name)
    parts = tuple(name.split("."))
    if len(parts) > 2 or not all(parts):
        raise InvalidOption(option, f"{name!r} is neither a table's name nor of the form schema.table")
    return parts


def _identifier(option: str, name: str) -> str:
    return checked_name(option, name)


def _names(option: str, names: Names) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    if not listed:
        raise InvalidOption(option, "names no column")
    return tuple(_identifier(option, name) for name in listed)


def _words(states: Mapping[str, Word]) -> Mapping[JobState, Word]:
    if not isinstance(states, Mapping):
        raise InvalidOption(
            "states", "must say the word for each state: dict(PENDING='queued', RUNNING='started', ...)"
        )
    for state in states:
        if state not in (*REQUIRED, *OTHERWISE):
            known = ", ".join([*REQUIRED, *OTHERWISE])
            raise InvalidOption("states", f"there is no state {state!r} for a row; there are {known}")
    words = {JobState(state): _word(state, word) for state, word in states.items()}
    if missing := [state.value for state in REQUIRED if state not in words]:
        raise InvalidOption("states", f"has no word for {', '.join(missing)}")
    if len({type(word) for word in words.values()}) > 1:
        raise InvalidOption("states", "has texts and numbers: a column holds one or the other")
    if twice := [state.value for state, word in words.items() if list(words.values()).count(word) > 1]:
        raise InvalidOption("states", f"{' and '.join(twice)} have the same word, so nobody could tell them apart")
    return MappingProxyType(words | {state: words.get(state, words[other]) for state, other in OTHERWISE.items()})


def _word(state: str, word: Word) -> Word:
    if isinstance(word, bool) or not isinstance(word, str | int):
        raise InvalidOption("states", f"the word for {state} must be a text or a whole number, not {word!r}")
    if isinstance(word, str) and (len(word) > LONGEST_WORD or "\x00" in word or not _is_text(word)):
        raise InvalidOption(
            "states", f"the word for {state} cannot be stored: it is too long, or has NUL or lone surrogates"
        )
    if isinstance(word, int) and not -(2**63) <= word < 2**63:
        raise InvalidOption("states", f"the word for {state} is over 64 bits")
    return word


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _condition(where: str | None) -> str | None:
    if where is None:
        return None
    if not isinstance(where, str) or not where.strip():
        raise InvalidOption("where", "must be a condition in SQL, such as 'deleted_at is null'")
    if len(where) > LONGEST_CONDITION or "\x00" in where or not _is_text(where):
        raise InvalidOption("where", "cannot be sent: it is too long, or has NUL or lone surrogates")
    return where


def _output(output: tuple[str, Names] | None) -> Output | None:
    if output is None:
        return None
    if isinstance(output, str) or len(output) != 2:
        raise InvalidOption(
            "output", "must name a table and the column of it that names the row: ('files', 'sticker_id')"
        )
    table, columns = output
    return Output(_table("output", table), _names("output", columns))
