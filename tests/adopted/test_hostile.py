"""Names and values that were made to break SQL: through every statement, and nothing of it is ever run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dibs.adopted.apply import apply
from dibs.adopted.compile import compiled
from dibs.adopted.inspect import inspect, tables
from dibs.adopted.mapping import adoption
from dibs.adopted.plan import Plan
from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_extras import function_name, recovers, wakes
from dibs.engines.engine import Engine
from dibs.errors import InvalidOption
from dibs.job import JobState, WorkerId
from dibs.ladder import START
from dibs.lifecycle import SUCCESS, Back, Done, Way, failure
from dibs.operations import adopted, workers
from dibs.operations.adopted import RANKS, Room, Source, Taken, taken_of
from dibs.operations.claims import Settle, Want
from dibs.payload import decode, encode
from tests.adopted.tables import Application
from tests.engines import Engines

PIECES = [
    '"', "'", "\\", ";", "--", "/*", "*/", "%", "%s", "%(limit)s", "%%", ":limit", ":picked", "?", "$1", "$$", "$dibs$",
    "\u202e", "\u200b", "\U0001f4a9", "é", "select", "t.", "null", "{", "}", "{0}", "[", "]", "(", ")", ",", "`", "#",
    "|", "=", "<>", "A", "a", "0", "_", "';", '";', "\\'", "E'", "::text", " ", "\u00a0", "drop table jobs", "'; --",
]  # fmt: skip


COLUMNS = {
    "key": "varchar(300) primary key not null",
    "status": "text",
    "order_by": "text",
    "priority": "int",
    "started_at": "timestamp",
    "finished_at": "timestamp",
    "worker": "text",
    "error": "text",
    "attempts": "int",
}


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


@pytest.mark.slow
def test_hostile_names_and_values_through_every_statement(place: Engine) -> None:
    """Of a table, its columns, its words, its output: thirty tables of thirteen names each, with five rows each."""
    names, values = iter([*hostile(400, seed=1)]), iter([*hostile(200, seed=2, longest=20)])
    place.run(workers.enlist(7, "worker-7", lease=1500, beat=3))
    for number in range(30):
        table, output = [next(names).replace(".", "") for _ in range(2)]
        column, word, *columns = [next(names) for _ in range(11)]
        said = dict(zip(COLUMNS, columns, strict=True))
        key, status, error = said["key"], said["status"], said["error"]
        keys = [next(values) for _ in range(5)]
        create(place, table, said, word, keys)
        say(place, f"create table {_quoted(output)} ({_quoted(column)} varchar(300))")
        for each in keys:
            say(place, f"insert into {_quoted(output)} values (§)", [each])
        words = {"PENDING": word, "RUNNING": f"{word}r", "SUCCESSFUL": f"{word}s", "FAILED": f"{word}f"}
        where = f"{_quoted(key)} is not null"
        source = adopt(place, table, **said, states=words, output=(output, column), where=where)
        assert place.run(adopted.waiting(source))
        assert place.run(adopted.counted(source, 10)) == (5, 0)
        room = Room(Want(WorkerId(7), number, 5, [(source.name, rank, *START) for rank in RANKS]), "worker-7")
        jobs = place.run(adopted.turn(source, room)).claimed
        taken = [taken_of(job) for job in jobs]
        assert sorted(each.key[0] for each in taken) == sorted(keys)
        assert all(each.done for each in taken), "each has its output"
        for each in taken:
            assert shown(each, said) == marked(place, said, each.key[0], f"{word}r", attempts=1)
        assert place.run(adopted.mend(source)) == place.run(adopted.notice(source)) == 0
        assert not place.run(adopted.turn(source, replace(room, place=taken[-1].place))).claimed
        assert place.run(adopted.trouble(source)) == ([], [], [], 0)

        back = Back(Way.RETRY, 0.0, failure=encode(failure(1, keys[0])))
        place.run(adopted.turn(source, None, [Settle(jobs[0].lease, back, attempt=1, key=taken[0].key)]))
        (jobs[0],) = place.run(adopted.turn(source, room)).claimed
        taken[0] = taken_of(jobs[0])
        again = marked(place, said, taken[0].key[0], f"{word}r", attempts=2) | {error: keys[0]}
        assert shown(taken[0], said) == again
        settles = [
            Settle(job.lease, failed(each.key[0]), attempt=job.attempts, key=each.key)
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
        assert all(look and look.row[said["finished_at"]] for look in looks)
        ended = {encode(each.key).decode(): job.id for job, each in zip(jobs, taken, strict=True)}
        assert place.run(adopted.ended(source)) == ended
        assert place.run(adopted.first(source)) is None
        say(place, f"update {_quoted(table)} set {_quoted(status)} = §", [word])
        first = place.run(adopted.first(source))
        assert first in keys
        place.run(adopted.put_off(source, first, 0.0))
        assert place.run(adopted.first(source)) not in (first, None)
        anew = place.run(
            adopted.turn(source, Room(Want(WorkerId(7), number, 5, ()), "worker-7", ["7", "", ""]))
        ).claimed
        assert sorted([first, *[taken_of(job).key[0] for job in anew]]) == sorted(keys)
        assert all(taken_of(job).done for job in anew)
        place.run(adopted.rehearse(source))
        say(place, f"insert into {_quoted(output)} values (§)", [keys[0]])
        assert place.run(adopted.trouble(source)) == ([], [], [(keys[0], 2)], 0)
        assert place.run(adopted.explain(source))


def shown(taken: Taken, said: Mapping[str, str]) -> dict[str, Any]:
    """A row as a worker gets it; when it began is known to the database alone."""
    row = dict(decode(taken.row))
    assert row.pop(said["started_at"])
    return row


def marked(place: Engine, said: Mapping[str, str], key: str, word: str, *, attempts: int) -> dict[str, Any]:
    """The row of this key, with what a claim writes into it."""
    values = {"key": key, "status": word, "order_by": key, "priority": 7, "worker": "worker-7", "attempts": attempts}
    named = {said[use]: values.get(use) for use in COLUMNS if use != "started_at"}
    return named | {"body": body(place, key)}


def adopt(place: Engine, table: str, **said: Any) -> Source:
    meant = adoption(table, **said)
    return compiled(meant, place.run(inspect(meant)), place)


def create(place: Engine, table: str, said: Mapping[str, str], word: str, keys: Sequence[str]) -> None:
    """A table, and a row that waits for each key."""
    columns = ", ".join(f"{_quoted(name)} {COLUMNS[use]}" for use, name in said.items())
    say(place, f"create table {_quoted(table)} ({columns}, body text)")
    filled = ", ".join(_quoted(said[use]) for use in ("key", "status", "order_by", "priority"))
    for each in keys:
        values = [each, word, each, body(place, each)]
        say(place, f"insert into {_quoted(table)} ({filled}, body) values (§, §, §, 7, §)", values)


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


@pytest.mark.slow
def test_hostile_names_through_what_is_added_to_a_table(place: Engine) -> None:
    """Columns, indexes, triggers and the function for cron; then the application goes on as before."""
    application = Application(place)
    names = iter([*hostile(312, seed=3)])
    for name in names:
        table, output = name.replace(".", ""), next(names).replace(".", "")
        column, word, *columns = [next(names) for _ in range(11)]
        said = dict(zip(COLUMNS, columns, strict=True))
        words = {"PENDING": word, "RUNNING": f"{word}r", "SUCCESSFUL": f"{word}s", "FAILED": f"{word}f"}
        meant = adoption(table, **said, states=words, output=(output, column))
        there = f"{_quoted(said['key'])} varchar(99) primary key not null, {_quoted(said['order_by'])} text"
        with application.connection() as raw:
            raw.execute(f"create table {_quoted(table)} ({there})")
            raw.execute(f"create table {_quoted(output)} ({_quoted(column)} varchar(99))")
        for each in Plan(meant, place.run(tables(meant)), place.name, f"{word}s").improvements():
            apply(each, place)
        assert not Plan(meant, place.run(tables(meant)), place.name).improvements()
        if place.name == "sqlite":
            continue
        made = PostgresTable(meant, place.run(inspect(meant)), place.dialect.own)
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
