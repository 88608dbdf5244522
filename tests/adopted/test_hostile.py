"""Names and values that were made to break SQL: through every statement, and nothing of it is ever run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dibs.adopted.compile import compiled
from dibs.adopted.inspect import inspect
from dibs.adopted.mapping import adoption
from dibs.adopted.plan import Plan, tables
from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_extras import function_name, recovers, wakes
from dibs.engines.dialect import Step
from dibs.engines.engine import Engine
from dibs.errors import InvalidOption
from dibs.job import JobState, WorkerId
from dibs.ladder import START
from dibs.lifecycle import SUCCESS, Done, failure
from dibs.operations import adopted, workers
from dibs.operations.adopted import RANKS, Room, Source, taken_of
from dibs.operations.claims import Settle, Want
from dibs.payload import decode, encode
from tests.adopted.tables import Application
from tests.engines import Engines

PIECES = [
    '"', "'", "\\", ";", "--", "/*", "*/", "%", "%s", "%(limit)s", "%%", ":limit", ":picked", "?", "$1", "$$", "$dibs$",
    "\u202e", "\u200b", "\U0001f4a9", "é", "select", "t.", "null", "{", "}", "{0}", "[", "]", "(", ")", ",", "`", "#",
    "|", "=", "<>", "A", "a", "0", "_", "';", '";', "\\'", "E'", "::text", " ", "\u00a0", "drop table jobs", "'; --",
]  # fmt: skip


def hostile(count: int, seed: int, longest: int = 12) -> Iterator[str]:
    """Texts of such pieces, all different, none longer than a name may be."""
    chance, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        text = "".join(chance.choice(PIECES) for _ in range(chance.randint(1, longest)))
        short = text.encode()[:60].decode(errors="ignore").strip()
        if short and short.lower() not in seen:
            seen.add(short.lower())
            yield short


@pytest.fixture(params=["sqlite", "postgres18"])
def place(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Engine]:
    with engines.open(request.param) as engine:
        yield engine


def test_200_hostile_names_and_values_through_every_statement(place: Engine) -> None:
    """Of a table, its columns, its words, its output: forty tables of five names each, with five rows each."""
    names, values = iter([*hostile(200, seed=1)]), iter([*hostile(200, seed=2, longest=20)])
    place.run(workers.enlist(7, "worker-7", lease=1500, beat=3))
    for number in range(40):
        table, key, status, error, word = next(names).replace(".", ""), *[next(names) for _ in range(4)]
        keys = [next(values) for _ in range(5)]
        create(place, [table, key, status, error], word, keys)
        words = {"PENDING": word, "RUNNING": f"{word}r", "SUCCESSFUL": f"{word}s", "FAILED": f"{word}f"}
        source = adopt(
            place,
            table,
            key=key,
            status=status,
            states=words,
            error=error,
            output=(table, key),
            where=f"{_quoted(key)} is not null",
        )
        assert place.run(adopted.waiting(source))
        assert place.run(adopted.counted(source, 10)) == (5, 0)
        room = Room(Want(WorkerId(7), number, 5, [(source.name, rank, *START) for rank in RANKS]), "worker-7")
        jobs = place.run(adopted.turn(source, room)).claimed
        taken = [taken_of(job) for job in jobs]
        assert sorted(each.key[0] for each in taken) == sorted(keys)
        assert all(each.done for each in taken), "each is its own output"
        for each in taken:
            assert decode(each.row) == {
                key: each.key[0],
                status: f"{word}r",
                error: None,
                "body": body(place, each.key[0]),
            }
        assert place.run(adopted.mend(source)) == place.run(adopted.notice(source)) == 0
        assert not place.run(adopted.turn(source, replace(room, place=taken[-1].place))).claimed
        assert place.run(adopted.trouble(source)) == ([], [], [], 0)
        settles = [
            Settle(job.lease, failed(each.key[0]), attempt=1, key=each.key)
            for job, each in zip(jobs, taken, strict=True)
        ]
        settles[0] = settles[0]._replace(change=SUCCESS)
        assert place.run(adopted.held(source, settles)) == frozenset()
        glimpses = place.run(adopted.glimpse(source, [each.key for each in taken]))
        assert {(glimpse.word, glimpse.job) for glimpse in glimpses} == {(f"{word}r", job.id) for job in jobs}
        turn = place.run(adopted.turn(source, None, settles))
        assert (turn.lost, turn.unwritten) == (frozenset(), frozenset())
        looks = [place.run(adopted.look(source, each.key)) for each in taken]
        assert [(look.word, look.row[error]) for look in looks if look] == [
            (f"{word}s", None),
            *[(f"{word}f", each.key[0]) for each in taken[1:]],
        ]
        ended = {encode(each.key).decode(): job.id for job, each in zip(jobs, taken, strict=True)}
        assert place.run(adopted.ended(source)) == ended
        assert place.run(adopted.first(source)) is None
        say(place, f"update {_quoted(table)} set {_quoted(status)} = §", [word])
        first = place.run(adopted.first(source))
        assert first in keys
        place.run(adopted.put_off(source, first, 0.0))
        assert place.run(adopted.first(source)) not in (first, None)
        anew = place.run(adopted.turn(source, Room(Want(WorkerId(7), number, 5, ()), "worker-7", [""]))).claimed
        assert sorted([first, *[taken_of(job).key[0] for job in anew]]) == sorted(keys)
        assert all(taken_of(job).done for job in anew)
        place.run(adopted.rehearse(source))
        assert place.run(adopted.trouble(source)) == ([], [], [], 0)
        assert place.run(adopted.explain(source))


def adopt(place: Engine, table: str, **said: Any) -> Source:
    meant = adoption(table, **said)
    return compiled(meant, place.run(inspect(meant)), place)


def create(place: Engine, names: Sequence[str], word: str, keys: Sequence[str]) -> None:
    """A table, and a row that waits for each key."""
    table, key, status, error = map(_quoted, names)
    columns = f"{key} varchar(300) primary key not null, {status} text, {error} text, body text"
    say(place, f"create table {table} ({columns})")
    for each in keys:
        say(place, f"insert into {table} values (§, §, null, §)", [each, word, body(place, each)])


def say(place: Engine, sql: str, values: Sequence[str] = ()) -> None:
    """The application itself; § stands for a value, for names may have a % or a ? of their own."""
    with Application(place).connection() as raw:
        if place.name == "sqlite":
            raw.execute(sql.replace("§", "?"), values)
        else:
            raw.execute(sql.replace("%", "%%").replace("§", "%s") if values else sql, values or None)


def body(place: Engine, value: str) -> str:
    """10 kB of it; with a NUL, where it can be stored."""
    between = "\0" if place.name == "sqlite" else "\n"
    return between.join([value] * 10_000)[:10_000]


def failed(error: str) -> Done:
    return Done(JobState.FAILED, failure=encode(failure(1, error)))


def test_200_hostile_names_through_what_is_added_to_a_table(place: Engine) -> None:
    """Columns, indexes, triggers and the function for cron; then the application goes on as before."""
    application = Application(place)
    names = iter([*hostile(200, seed=3)])
    for name in names:
        table, (key, status, started, word) = name.replace(".", ""), (next(names) for _ in range(4))
        words = {"PENDING": word, "RUNNING": f"{word}r", "SUCCESSFUL": f"{word}s", "FAILED": f"{word}f"}
        said = adoption(table, key=key, status=status, started_at=started, states=words, output=(table, key))
        with application.connection() as raw:
            raw.execute(f"create table {_quoted(table)} ({_quoted(key)} varchar(99) primary key not null)")
        for each in Plan(said, place.run(tables(said)), place.name, f"{word}s").improvements():
            sql = each.sql if place.name == "sqlite" else each.sql.replace("%", "%%")
            place.run_once(adopted.change([Step(sql)]))
        assert not Plan(said, place.run(tables(said)), place.name).improvements()
        if place.name == "sqlite":
            continue
        made = PostgresTable(said, place.run(inspect(said)), place.dialect.own)
        with application.connection() as raw:
            for sql in (*wakes(made), recovers(made, 300)):
                raw.execute(sql)
            raw.execute(f"insert into {_quoted(table)} values ('x')")
            function = _quoted(function_name("recover", table))
            assert raw.execute(f"select dibs.{function}()").fetchone() == (0,)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 10_000, "\ud800", "a.b.c", ".", "a\nb", 7, None])
def test_names_that_no_table_has_are_refused(name: object) -> None:
    dotted = isinstance(name, str) and "." in name  # a column may be named so
    for option in ("table",) if dotted else ("table", "key", "status"):
        said = {"table": "t", "key": "id", "status": "status", option: name}
        with pytest.raises((InvalidOption, TypeError)):
            adoption(**said, states={"PENDING": "a", "RUNNING": "b", "SUCCESSFUL": "c", "FAILED": "d"})  # type: ignore[arg-type]  # on purpose


def test_long_values_go_through(place: Engine) -> None:
    """A text of 10 kB as a word's neighbour, in a row; and a key that is as long as an index takes."""
    application = Application(place)
    application.execute("create table t (id varchar(2000) primary key not null, status text, body text)")
    mark = "?" if place.name == "sqlite" else "%s"
    with application.connection() as raw:
        raw.execute(f"insert into t values ({mark}, 'a', {mark})", ["k" * 2000, "ünï'\"\\" * 1500])
    said = adoption(
        "t", key="id", status="status", states={"PENDING": "a", "RUNNING": "b", "SUCCESSFUL": "c", "FAILED": "d"}
    )
    source = compiled(said, place.run(inspect(said)), place)
    place.run(workers.enlist(7, "worker-7", lease=15, beat=3))
    room = Room(Want(WorkerId(7), 1, 5, [(source.name, rank, *START) for rank in RANKS]), "worker-7")
    (job,) = place.run(adopted.turn(source, room)).claimed
    assert taken_of(job).key == ["k" * 2000]
