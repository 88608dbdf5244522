"""Names and values that were made to break SQL: through every statement, and nothing of it is ever run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

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
from dibs.job import WorkerId
from dibs.ladder import START
from dibs.lifecycle import SUCCESS
from dibs.operations import adopted, workers
from dibs.operations.adopted import RANKS, Room, taken_of
from dibs.operations.claims import Settle, Want
from dibs.payload import encode
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
        if short and "." not in short and short.lower() not in seen:
            seen.add(short.lower())
            yield short


@pytest.fixture(params=["sqlite", "postgres18"])
def place(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Engine]:
    with engines.open(request.param) as engine:
        yield engine


def test_200_hostile_names_through_every_statement(place: Engine) -> None:
    """Of a table, its columns, its words, its output: forty tables of five names each."""
    application = Application(place)
    names, values = iter([*hostile(200, seed=1)]), [*hostile(40, seed=2, longest=20)]
    place.run(workers.enlist(7, "worker-7", lease=15, beat=3))
    for number, table in enumerate(names):
        key, status, error, word = (next(names) for _ in range(4))
        sane = {name: _quoted(name) for name in (table, key, status, error)}
        with application.connection() as raw:
            columns = f"{sane[key]} varchar(300) primary key not null, {sane[status]} text, {sane[error]} text"
            raw.execute(f"create table {sane[table]} ({columns})")
            value = values[number]
            insert = f"insert into {sane[table]} values "
            if place.name == "sqlite":
                raw.execute(insert + "(?, ?, null)", [value, word])
            else:
                raw.execute(insert.replace("%", "%%") + "(%s, %s, null)", [value, word])
        words = {"PENDING": word, "RUNNING": f"{word}r", "SUCCESSFUL": f"{word}s", "FAILED": f"{word}f"}
        said = adoption(
            table,
            key=key,
            status=status,
            states=words,
            error=error,
            output=(table, key),
            where=f"{sane[key]} is not null",
        )
        source = compiled(said, place.run(inspect(said)), place)
        assert place.run(adopted.waiting(source))
        assert place.run(adopted.counted(source, 10)) == (1, 0)
        ranges = [(source.name, rank, *START) for rank in RANKS]
        room = Room(Want(WorkerId(7), number, 5, ranges), "worker-7")
        (job,) = place.run(adopted.turn(source, room)).claimed
        taken = taken_of(job)
        assert taken.key == [value]
        assert taken.done, "it is its own output"
        assert place.run(adopted.mend(source)) == place.run(adopted.notice(source)) == 0
        assert not place.run(adopted.turn(source, replace(room, place=taken.place, avoid=[value]))).claimed
        assert place.run(adopted.held(source, [Settle(job.lease, SUCCESS, key=taken.key)])) == frozenset()
        (glimpse,) = place.run(adopted.glimpse(source, [[value]]))
        assert (glimpse.word, glimpse.job) == (f"{word}r", job.id)
        settle = Settle(job.lease, SUCCESS, attempt=1, key=taken.key)
        assert not place.run(adopted.turn(source, None, [settle])).lost
        look = place.run(adopted.look(source, [value]))
        assert look is not None
        assert look.word == f"{word}s"
        assert place.run(adopted.ended(source)) == {encode([value]).decode(): job.id}
        assert place.run(adopted.first(source, [])) is None
        again = f"update {sane[table]} set {sane[status]} = "
        with application.connection() as raw:
            raw.execute(again + "?" if place.name == "sqlite" else again.replace("%", "%%") + "%s", [word])
        (anew,) = place.run(adopted.turn(source, Room(Want(WorkerId(7), number, 5, ()), "worker-7", [""]))).claimed
        assert taken_of(anew).key == [value]
        assert taken_of(anew).done
        place.run(adopted.rehearse(source))
        place.run(adopted.trouble(source))
        assert place.run(adopted.explain(source))


def test_200_hostile_names_through_what_is_added_to_a_table(place: Engine) -> None:
    """Columns, indexes, triggers and the function for cron; then the application goes on as before."""
    application = Application(place)
    names = iter([*hostile(200, seed=3)])
    for table in names:
        key, status, started, word = (next(names) for _ in range(4))
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
