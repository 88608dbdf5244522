"""Owning rows of somebody else's table. Each row in our hands has a job, which is its lease: so it is beaten for,
recovered, retried and shown like any other. What the job comes to is written into the row in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from dibs.job import CODES, LEVELS, Claimed, JobId, JobState, rank
from dibs.lifecycle import Change, Done, Way
from dibs.operations.claims import Settle, Turn, Want, turn_from_rows, turn_values
from dibs.operations.operation import Compiled, Conversation, Operation, Row, Rows, Table, operation
from dibs.payload import decode, encode

ASKED, PLAIN, WATCHING = rank(9), rank(5), rank(0)  # retried by a person; most; only watches a row, until it is claimed
RANKS = tuple(level + last for level in (ASKED, PLAIN, WATCHING) for last in (0, LEVELS))
PLAIN_WAYS = ("done", "new_after")  # statements for successes and new rows alone
WRITTEN = ("job", "token", "state", "error", "attempts", "key")
LONGEST_LABEL = 200
KEPT = ("attempts", "error")  # columns that those who watch a row are told
NEWEST = 1_000  # ids among which a job is looked for that came and went unseen
MOST = 1_000  # rows that are noticed at once
UNWRITTEN = (
    "its row could not be written"  # hook_error of a job whose row still says that it runs, and is to be left so
)


class Source(NamedTuple):
    """An adopted table as a queue: its name is the queue, and the type of its jobs."""

    name: str
    steps: Mapping[str, Sequence[Any]]  # compiled for it
    batch: int = 5
    poll: float = 1.0
    stuck_after: float = 300.0
    max_attempts: int = 3


class Taken(msgspec.Struct):
    """What came with a claimed row. Without `row` it is not to be had any more: deleted, or finished by others."""

    key: list[Any] = msgspec.field(default_factory=list)
    document: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="row")
    done: bool = False  # its output is there already
    place: list[str | None] | None = None  # in the order of the table; only of rows that were new
    problem: str = ""  # why the row cannot be read, although it is there

    @property
    def row(self) -> bytes | None:
        """The row as JSON."""
        return bytes(self.document) or None


decode_taken = msgspec.json.Decoder(Taken).decode


@dataclass(frozen=True, slots=True)
class Room:
    """For whom rows are taken, how many at most, and after which place of the order."""

    want: Want | None
    worker_name: str
    place: Sequence[str | None] | None = None


@operation()
def turn(
    source: Source, room: Room | None, settles: Sequence[Settle] = (), events: Sequence[str] = ()
) -> Conversation[Turn]:
    """Settle first, then claim: rows whose retry is due, then new ones."""
    values = turn_values(room.want if room else None, settles, events)
    name = _way(source, room, settles, whole=values["whole"])
    places = {f"place_{n}": text for n, text in enumerate(room.place or ())} if room else {}
    written = () if name in PLAIN_WAYS else settles
    rows = yield Compiled("turn", source.steps[name], **values | _more(source, room, written, values), **places)
    turn, those = _from_rows(rows)
    if those is None and name in PLAIN_WAYS:
        return turn  # all of them
    meant = {each.lease.job_id for each in settles if each.key is not None}
    return turn._replace(unwritten=frozenset(meant - (those or set()) - turn.lost - turn.before.keys()))


def _way(source: Source, room: Room | None, settles: Sequence[Settle], *, whole: bool) -> str:
    """Which statement says it: a shorter one, where there is one, for successes and new rows alone."""
    usual = not whole and all(each.key is not None for each in settles)
    if room is None or room.want is None:
        return "done" if usual and "done" in source.steps else "turn"
    if room.place is None:
        return "turn"
    plain = usual and not room.want.ranges and "new_after" in source.steps
    return "new_after" if plain else "turn_after"


def _more(source: Source, room: Room | None, settles: Sequence[Settle], values: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of rows, beside what is said of jobs."""
    limit = values["limit"]
    again = 0 if values["back"].rows else limit  # what goes back in this turn is not taken by it: one row, written once
    newest = {each.lease.job_id: each for each in sorted(settles, key=lambda each: each.lease)}  # of one job's leases
    return {
        "rows": True,
        "unknown": [],
        "suspects": min(values["suspects"], again),
        "limit": again,
        "again": again,
        "room": limit,
        "written": Table(WRITTEN, [_written(each, each.key) for each in newest.values() if each.key is not None]),
        "worker_name": room.worker_name if room else "",
        "max_attempts": source.max_attempts,
        "stuck_after": source.stuck_after,
    }


@operation(atomic=True)
def rehearse(source: Source) -> Conversation[None]:
    """Have everything explained that a worker says: what cannot be said of this table is refused, nothing is done."""
    values = turn_values(None, (), ())
    values |= _more(source, None, (), values) | {"picked": [], "most": MOST, "row_key": "", "seconds": 0.0}
    places = {name: None for step in source.steps["trial"] for name in step.uses if name.startswith("place_")}
    yield Compiled("trial", source.steps["trial"], **values, **places)


@operation()
def due(source: Source, want: Want) -> Conversation[Turn]:
    """Claim only jobs of rows that had one before, and leave the rows as they are."""
    values = turn_values(want, (), ()) | {"rows": True, "unknown": []}
    rows = yield Compiled("due", source.steps["due"], **values, again=want.limit)
    return turn_from_rows(rows)


@operation()
def first(source: Source) -> Conversation[str | None]:
    """The key of the row that would be claimed next, as a text."""
    rows = yield Compiled("first", source.steps["first"])
    return rows[0][0] if rows else None


@operation()
def put_off(source: Source, key: str, seconds: float) -> Conversation[None]:
    """The row that would be claimed next, if it still has this key, waits for so long: by a job that is due then."""
    values = dict(row_key=key, seconds=seconds, max_attempts=source.max_attempts)
    yield Compiled("put_off", source.steps["put_off"], **values)


@operation()
def held(source: Source, settles: Sequence[Settle]) -> Conversation[frozenset[JobId]]:
    """Those of the jobs whose rows are locked by somebody else."""
    written = [_written(each, each.key) for each in settles if each.key is not None]
    if not written or "held" not in source.steps:
        return frozenset()
    rows = yield Compiled("held", source.steps["held"], written=Table(WRITTEN, written))
    return frozenset(row[0] for row in rows)


def settle(source: Source, settles: Sequence[Settle]) -> Operation[Turn]:
    """Settle alone."""
    return turn(source, None, settles)


def _from_rows(rows: Rows) -> tuple[Turn, set[JobId] | None]:
    """And the jobs whose rows were written: a list in the head row, or rows of one column; None when it is not said.
    Rows of two columns are what a job's row looks like; they may come apart from it."""
    if not any(len(row) <= 2 for row in rows):
        head, written = rows[0], decode(rows[0][4])
        return turn_from_rows(rows)._replace(picked=head[0] or 0), None if written is None else set(written)
    shown = {row[0]: row[1] for row in rows if len(row) == 2}
    head, *claimed = [row for row in rows if len(row) > 2]
    known = [(*row[:4], shown.get(row[0], row[4]), *row[5:]) for row in claimed]
    written = {*(decode(head[4]) or ()), *[row[0] for row in rows if len(row) == 1]}
    return turn_from_rows([head, *known])._replace(picked=head[0] or 0), written


def printable(text: str) -> str:
    """What names a row, on one line and without what could be taken for more of the log."""
    return "".join(each if each.isprintable() and each not in '"\\' else "?" for each in text[:LONGEST_LABEL])


def taken_of(job: Claimed) -> Taken:
    """What came with it."""
    return decode_taken(job.payload or b"{}")


def _written(settle: Settle, key: Sequence[Any]) -> Row:
    state, used = _state(settle.change)
    return (
        *settle.lease,
        state,
        _error(settle.change),
        max(settle.attempt - (not used), 0),
        encode(list(key)).decode(),
    )


def _state(change: Change) -> tuple[int, bool]:
    """What the row says next, and whether the attempt counts."""
    if isinstance(change, Done):
        return CODES[change.state], True
    match change.way:
        case Way.RETRY:
            return CODES[JobState.RETRY], True
        case Way.FINISH:
            return CODES[JobState.RUNNING], True
        case _:
            return CODES[JobState.PENDING], False


def _error(change: Change) -> str | None:
    return None if change.failure is None else str(decode(change.failure)["error"])


@operation(reads=True, atomic=True)
def waiting(source: Source) -> Conversation[bool]:
    """Whether a new row waits."""
    return bool((yield Compiled("waiting", source.steps["waiting"])))


@operation(reads=True, atomic=True)
def counted(source: Source, most: int) -> Conversation[tuple[int, int]]:
    """How many rows wait and how many say that they run, each up to `most`."""
    rows = yield Compiled("count", source.steps["count"], most=most)
    return int(rows[0][0]), int(rows[0][1])


@operation(atomic=True)
def mend(source: Source) -> Conversation[int]:
    """Rows whose worker died wait again, and say so."""
    return len((yield Compiled("mend", source.steps["mend"])))


@operation(atomic=True)
def notice(source: Source) -> Conversation[int]:
    """Rows that run without a lease of ours: each is looked at again when its time is over."""
    rows = yield Compiled(
        "notice", source.steps["notice"], stuck_after=source.stuck_after, max_attempts=source.max_attempts, most=MOST
    )
    return len(rows)


class Look(NamedTuple):
    """A row as it is: its word, all of it, and the job that it has."""

    word: Any
    row: Any
    job: JobId | None


@operation(reads=True)
def look(source: Source, key: Sequence[Any]) -> Conversation[Look | None]:
    """One row by its key."""
    parts = {f"key_{n}": None if part is None else str(part) for n, part in enumerate(key)}
    rows = yield Compiled("look", source.steps["look"], key=list(key), **parts)
    return Look(rows[0][0], decode(rows[0][1]), rows[0][2]) if rows else None


class Glimpse(NamedTuple):
    """A row in passing: which of those asked for, its word, what it keeps, its job if it has one, its key as JSON."""

    number: int
    word: Any
    attempts: int
    error: str | None
    job: JobId | None
    key: str


@operation(reads=True)
def glimpse(source: Source, keys: Sequence[Sequence[Any]]) -> Conversation[list[Glimpse]]:
    """Those of the rows that there are."""
    rows = yield Compiled("glimpse", source.steps["glimpse"], keys=encode([list(key) for key in keys]))
    return [
        Glimpse(int(n), word, int(attempts or 0), error, job, _same(key)) for n, word, attempts, error, job, key in rows
    ]


@operation(reads=True)
def ended(source: Source) -> Conversation[dict[str, JobId]]:
    """The jobs of this table that are among the newest of those that have ended, by their keys as JSON."""
    rows = yield Compiled("ended", source.steps["ended"])
    return {_same(key): job for job, key in sorted(rows)}


def _same(key: str | bytes) -> str:
    return encode(decode(key)).decode()


@operation(reads=True, atomic=True)
def explain(source: Source) -> Conversation[list[str]]:
    """How the database finds the rows that a claim takes."""
    rows = yield Compiled("explain", source.steps["explain"])
    return [str(row[-1]) for row in rows]


class Trouble(NamedTuple):
    """What is wrong with the rows of a table: unknown words and how many rows have them, rows that nobody works on
    although they say so, rows that have more than one output, and how many are left alone for keys that cannot name
    them."""

    unknown: list[tuple[str | None, int]]
    stuck: list[str]
    duplicates: list[Row]
    nameless: int


@operation(reads=True)
def trouble(source: Source) -> Conversation[Trouble]:
    """Look for it. Reads whole tables: for a person who asks."""
    unknown = yield Compiled("unknown", source.steps["unknown"])
    stuck = yield Compiled("stuck", source.steps["stuck"], stuck_after=source.stuck_after)
    twice = (yield Compiled("duplicates", source.steps["duplicates"])) if "duplicates" in source.steps else []
    nameless = (yield Compiled("nameless", source.steps["nameless"])) if "nameless" in source.steps else [(0,)]
    return Trouble([(row[0], row[1]) for row in unknown], [row[0] for row in stuck], twice, nameless[0][0])


@operation(reads=True)
def functions(source: Source) -> Conversation[dict[str, str]]:
    """The texts of the functions that were made for it, by their names; engines without such have none."""
    rows = (yield Compiled("functions", source.steps["functions"])) if "functions" in source.steps else []
    return {row[0]: row[1] for row in rows}


@operation(repeatable=False)
def change(steps: Sequence[Any]) -> Conversation[None]:
    """Change the table itself, in one statement."""
    yield Compiled("change", steps)
