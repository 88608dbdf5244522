"""A table of somebody else on a real database, as its own application sees it; and a worker's hands on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from typing import Any

import psycopg

from dibs.adopted.compile import compiled
from dibs.adopted.inspect import inspect
from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.job import Claimed, WorkerId
from dibs.ladder import START
from dibs.lifecycle import Change
from dibs.operations import adopted, workers
from dibs.operations.adopted import RANKS, Room, Source, taken_of
from dibs.operations.claims import Settle, Turn, Want
from tests.adopted.schemas import Schema


class Application:
    """Whose table it is."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._kept: psycopg.Connection | None = None  # a new one for each statement takes longer than most of them

    def __del__(self) -> None:
        if self._kept is not None:
            self._kept.close()

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Its own, committed at the end."""
        if isinstance(self.engine, SqliteEngine):
            self.engine.ready()
            with closing(sqlite3.connect(self.engine.place.path)) as raw, raw:
                yield raw
        else:
            assert isinstance(self.engine, PostgresEngine)
            with psycopg.connect(self.engine.server.url, prepare_threshold=None) as raw:
                yield raw

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """One statement, with %s for values on both engines."""
        if isinstance(self.engine, SqliteEngine):
            with self.connection() as raw:
                return raw.execute(sql.replace("%s", "?") if values else sql, values).fetchall()  # type: ignore[no-any-return]
        assert isinstance(self.engine, PostgresEngine)
        if self._kept is None or self._kept.closed:
            self._kept = psycopg.connect(self.engine.server.url, autocommit=True, prepare_threshold=None)
        cursor = self._kept.execute(sql.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def duplicates(self, table: str, column: str) -> list[tuple[Any, ...]]:
        """What is there more than once: nobody's work is done twice."""
        return self.execute(f"select {column}, count(*) from {table} group by {column} having count(*) > 1")

    def wait(self, seconds: float) -> None:
        """What the jobs of its rows wait for comes sooner by so much."""
        if isinstance(self.engine, SqliteEngine):
            self.execute(f"update dibs_jobs set run_at = run_at - {seconds * 1_000_000:.0f}")
        else:
            self.execute(f"update dibs.jobs set run_at = run_at - interval '{seconds} s'")


class Adopted:
    """A schema on an engine, adopted; `hurried`: by hands that are."""

    def __init__(self, engine: Engine, schema: Schema, *, hurried: bool = False) -> None:
        self.hurried = hurried
        self.engine, self.schema, self.adoption = engine, schema, schema.adoption
        self.application = Application(engine)
        made = schema.sqlite if isinstance(engine, SqliteEngine) else schema.postgres
        assert made is not None
        for sql in (*schema.also, made):
            self.application.execute(sql)
        self.source: Source = compiled(self.adoption, engine.run(inspect(self.adoption)), engine)
        self.words = {word: state for state, word in reversed(self.adoption.words.items())}

    def fill(self, rows: Sequence[tuple[Any, ...]] | None = None) -> None:
        """Rows that wait."""
        names = ", ".join(map(self._quoted, self.schema.columns))
        marks = ", ".join(["%s"] * len(self.schema.columns))
        for row in self.schema.rows if rows is None else rows:
            self._say(f"insert into {{table}} ({names}) values ({marks})", row)

    def states(self) -> list[str]:
        """Of all rows, in the order of those of the schema."""
        keys = [self.schema.columns.index(name) for name in self.adoption.key]
        return [self.state([row[n] for n in keys]) for row in self.schema.rows]

    def state(self, key: Sequence[Any]) -> str:
        """Of one row, in our words."""
        look = self.engine.run(adopted.look(self.source, key))
        if look is None:
            return "gone"
        words = {str(word): state for word, state in self.words.items()}
        return words[str(look.word).strip()].value

    def column(self, use: str, key: Sequence[Any]) -> Any:
        """A kept column of a row."""
        return self._of(key, self._quoted(self.adoption.kept[use]))

    def since(self, use: str, key: Sequence[Any]) -> float | None:
        """How many seconds ago that was, as the application understands a time of its own."""
        then, is_number = self._quoted(self.adoption.kept[use]), isinstance(self.column(use, key), int | float)
        if isinstance(self.engine, SqliteEngine):
            seconds = then if is_number else f"(julianday({then}) - 2440587.5) * 86400"
            found = self._of(key, f"(julianday('now') - 2440587.5) * 86400 - {seconds}")
        else:
            seconds = then if is_number else f"extract(epoch from {then}::timestamptz)"
            found = self._of(key, f"(extract(epoch from clock_timestamp()) - {seconds})::float8")
        return None if found is None else float(found)

    def _of(self, key: Sequence[Any], shown: str) -> Any:
        return self._say(f"select {shown} from {{table}} where {{key}}", key)[0][0]

    def set(self, word: str, key: Sequence[Any]) -> None:
        """The application says so, by itself."""
        status = self._quoted(self.adoption.status)
        self._say(f"update {{table}} set {status} = %s where {{key}}", [self.adoption.words[word], *key])  # type: ignore[index]  # a state

    def remove(self, key: Sequence[Any]) -> None:
        """The application deletes it."""
        self._say("delete from {table} where {key}", key)

    def _say(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        key = " and ".join(f"{self._quoted(name)} = %s" for name in self.adoption.key)
        table = ".".join(map(self._quoted, self.adoption.table))
        return self.application.execute(sql.replace("{table}", table).replace("{key}", key), values)

    def _quoted(self, name: str) -> str:
        """psycopg reads a % twice."""
        return _quoted(name) if isinstance(self.engine, SqliteEngine) else _quoted(name).replace("%", "%%")

    def produce(self, jobs: Sequence[Claimed]) -> None:
        """What an owner makes of its rows."""
        self.application.execute("create table if not exists made (row_key text not null)")
        for job in jobs:
            self.application.execute("insert into made values (%s)", [str(taken_of(job).key)])

    def made(self) -> int:
        """How much there is of that."""
        return int(self.application.execute("select count(*) from made")[0][0])

    def duplicates(self) -> list[tuple[Any, ...]]:
        """Rows that somebody has made twice."""
        return self.application.duplicates("made", "row_key")

    def worker(self, number: int, *, lease: float = 15) -> Hand:
        """Somebody who takes rows."""
        assert self.engine.run(workers.enlist(number, f"worker-{number}", lease=lease, beat=lease / 5))
        return Hand(self, WorkerId(number), self.schema.before if self.hurried else None)

    def key(self, n: int) -> list[Any]:
        """Of the nth row of the schema."""
        return [self.schema.rows[n][self.schema.columns.index(name)] for name in self.adoption.key]


class Hand:
    """A worker's turns on one table. One that is hurried asks for new rows alone, after a place that comes before all,
    and for others if there are too few of those."""

    def __init__(self, adopted: Adopted, worker: WorkerId, before: Sequence[str] | None = None) -> None:
        self.adopted, self.worker, self.before, self.number = adopted, worker, before, 0

    def on(self, engine: Engine) -> Hand:
        """The same worker, on connections of its own."""
        there = copy(self.adopted)
        there.engine = engine
        return Hand(there, self.worker, self.before)

    def turn(
        self, limit: int, settles: Sequence[tuple[Claimed, Change]] = (), place: Sequence[str] | None = None
    ) -> Turn:
        """One turn."""
        changes = [Settle(job.lease, change, attempt=job.attempts, key=taken_of(job).key) for job, change in settles]
        if not (limit and self.before):
            return self._turn(limit, changes, place)
        turn = self._turn(limit, changes, place or self.before, new_alone=True)
        if len(turn.claimed) == limit:
            return turn
        more = self._turn(limit - len(turn.claimed), (), place)
        return turn._replace(claimed=[*turn.claimed, *more.claimed])

    def _turn(
        self, limit: int, changes: Sequence[Settle], place: Sequence[str] | None, *, new_alone: bool = False
    ) -> Turn:
        source, engine = self.adopted.source, self.adopted.engine
        self.number += 1
        ranges = [] if new_alone else [(source.name, rank, *START) for rank in RANKS]
        want = Want(self.worker, self.number, limit, ranges)
        room = Room(want, f"worker-{self.worker}", place) if limit else None
        return engine.run(adopted.turn(source, room, changes))

    def take(self, limit: int = 10, place: Sequence[str] | None = None) -> list[Claimed]:
        """Rows."""
        return self.turn(limit, place=place).claimed

    def settle(self, *settles: tuple[Claimed, Change]) -> Turn:
        """Say what became of them."""
        return self.turn(0, settles)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
