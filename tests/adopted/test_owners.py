"""One owner, whatever an application, another session or a forged job does meanwhile; and no output without its row."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dibs import Dibs, Job, JobState
from dibs.adopted.inspect import inspect
from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_extras import recovers, wakes
from dibs.adopted.source import Adopted
from dibs.context import Snooze
from dibs.errors import DibsError, NotAdoptable
from dibs.job import Claimed, NewJob
from dibs.lifecycle import SUCCESS, Back, Change, Done, Way
from dibs.operations import adopted as rows
from dibs.operations import jobs, workers
from dibs.operations.jobs import Filter
from tests.adopted.schemas import WORDS
from tests.adopted.tables import Application, Hand
from tests.adopted.test_processing import FILES, TABLE, adopt, fill, statuses
from tests.apps import on_postgres, on_sqlite


@pytest.fixture
def application(app: Dibs) -> Application:
    """Whose tables they are."""
    application = Application(app.engine)
    application.execute(TABLE)
    application.execute(FILES)
    return application


def hand(app: Dibs, adopted: Adopted, number: int = 7, *, before: Sequence[str] | None = None, **source: Any) -> Hand:
    """A worker who is alive for long; with a place before all rows, one that is hurried."""
    app.engine.run(workers.enlist(number, f"worker-{number}", lease=1500, beat=3))
    holder = type("Holder", (), {"source": adopted.source(app.engine)._replace(**source), "engine": app.engine})()
    return Hand(holder, number, before)  # type: ignore[arg-type]  # what it asks for


def insert(app: Dibs, connection: Any, sticker: int) -> None:
    mark = "%s" if app.engine.name == "postgres" else "?"
    connection.execute(f"insert into files (sticker) values ({mark})", [sticker])


def table_of(app: Dibs, adopted: Adopted) -> PostgresTable:
    return PostgresTable(adopted.adoption, app.engine.run(inspect(adopted.adoption)), app.engine.dialect.own)


# Output and status


def test_a_row_put_back_under_our_hands_has_one_output(app: Dibs, application: Application) -> None:
    """An old cron resets what is started: the first run has done its work for nothing."""
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) == 1:
            application.execute("update stickers set status = 'queued' where id = 1")
        with row.transaction() as connection:
            insert(app, connection, row["id"])

    fill(application, 1)
    app.drain()
    assert len(ran) == 2
    assert application.execute("select sticker, count(*) from files group by 1") == [(1, 1)]
    assert statuses(application) == {"completed": 1}


async def test_a_row_put_back_has_one_output_in_async_code_too(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    application.execute(FILES)
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    async def render(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) == 1:
            application.execute("update stickers set status = 'queued' where id = 1")
        mark = "%s" if app.engine.name == "postgres" else "?"
        async with row.transaction() as connection:
            await connection.execute(f"insert into files (sticker) values ({mark})", [row["id"]])

    fill(application, 1)
    await app.adrain()
    assert application.execute("select sticker, count(*) from files group by 1") == [(1, 1)]


def test_a_row_deleted_under_our_hands_has_no_output(app: Dibs, application: Application) -> None:
    stickers = adopt(app)

    @stickers.process
    def render(row: Any) -> None:
        application.execute("delete from stickers where id = 1")
        with row.transaction() as connection:
            insert(app, connection, row["id"])

    fill(application, 1)
    app.drain()
    assert application.execute("select * from files") == []
    assert app.engine.run(jobs.page(Filter(state=JobState.RUNNING))).jobs == []


def test_a_row_re_keyed_under_our_hands_has_one_output(app: Dibs, application: Application) -> None:
    """Under its new key it runs without a lease: it is taken over like any row that others left behind."""
    stickers, ran = adopt(app, stuck_after=2), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) == 1:
            application.execute("update stickers set id = 99 where id = 1")
        with row.transaction() as connection:
            insert(app, connection, row["id"])

    fill(application, 1)
    while statuses(application) != {"completed": 1}:
        app.drain()
        application.wait(2.1)
    assert set(ran) == {1, 99}
    assert application.execute("select sticker from files") == [(99,)]


@on_postgres  # on SQLite the hook holds the only write lock: nobody can put its row back meanwhile
def test_a_hook_whose_row_was_put_back_leaves_nothing(app: Dibs, application: Application) -> None:
    """Its row is queued anew while it runs: what it did is rolled back, and nobody is refunded for work to come."""

    def refund(job: Job, connection: Any) -> None:
        insert(app, connection, 1)
        if fails:
            fails.clear()
            application.execute("update stickers set status = 'queued' where id = 1")

    fails = [True]
    stickers = adopt(app, on_failure=refund, max_attempts=1)

    @stickers.process
    def render(row: Any) -> None:
        if fails:
            raise ValueError("broken")

    fill(application, 1)
    while statuses(application) != {"completed": 1}:
        app.drain()
    assert application.execute("select * from files") == []


# Forged jobs


def test_a_job_that_only_looks_like_a_row_is_not_run(app: Dibs, application: Application) -> None:
    """Anybody who may add jobs could write one with the name of the table."""
    stickers, ran = adopt(app), list[Any]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(dict(row))

    fill(application, 1)
    hand(app, stickers).take(1)
    for payload in (b'{"key": ["1"], "row": {"id": 1}}', b'{"key": 5}', b"{}"):
        app.add(NewJob(type="stickers", payload=payload))
    app.drain()
    assert not ran
    assert statuses(application) == {"started": 1}
    assert len(app.engine.run(jobs.page(Filter(state=JobState.PENDING))).jobs) == 3


async def test_nor_is_it_run_by_a_worker(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    async def render(row: Any) -> None:
        ran.append(row["id"])

    app.add(NewJob(type="stickers", payload=b'{"key": 5}'))
    app.add(NewJob(type="stickers", payload=b'{"key": ["1"], "row": {"id": 99}}'))
    async with app.running() as worker:
        while "stickers" not in worker.unknown:
            await _moment()
        fill(application, 3)
        while len(ran) < 3:
            await _moment()
    assert sorted(ran) == [1, 2, 3]


async def _moment() -> None:
    from asyncio import sleep

    await sleep(0.01)


@pytest.mark.parametrize("change", [SUCCESS, Done(JobState.FAILED)], ids=str)
def test_what_is_written_is_the_row_of_the_job(app: Dibs, application: Application, change: Change) -> None:
    """A settle that names another row does not write that one; of a plain success, the job alone says which it is."""
    stickers = adopt(app)
    fill(application, 2)
    worker = hand(app, stickers)
    one, _ = worker.take(2)
    forged = rows.settle(worker.adopted.source, [rows.Settle(one.lease, change, attempt=1, key=["2"])])
    turn = app.engine.run(forged)
    assert application.execute("select status from stickers where id = 2") == [("started",)]
    asked = app.engine.name == "postgres" and change is SUCCESS
    assert turn.unwritten == (set() if asked else {one.id})
    assert application.execute("select status from stickers where id = 1") == [("completed" if asked else "started",)]


@on_postgres
def test_a_settle_that_waits_for_its_own_first_copy_finds_it(app: Dibs, application: Application) -> None:
    """The answer to the first was lost while it was under way, and it is sent again."""
    stickers = adopt(app)
    fill(application, 1)
    worker = hand(app, stickers)
    (job,) = worker.take(1)
    settle = rows.settle(worker.adopted.source, [rows.Settle(job.lease, SUCCESS, attempt=1, key=["1"])])
    found = list[rows.Turn]()
    second = threading.Thread(target=lambda: found.append(app.engine.run(settle)))
    with app.engine.transaction() as first:
        assert not first.run(settle).lost
        second.start()
        waiting = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        while application.execute(waiting) != [(1,)]:
            pass
        first.commit()
    second.join()
    assert found[0].before == {job.id: JobState.SUCCESSFUL}
    assert not found[0].lost
    assert not found[0].unwritten


# Names and sessions


@on_postgres
def test_a_key_is_the_same_in_every_session(app: Dibs, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    application = Application(app.engine)
    application.execute(
        "create table readings (at timestamptz, day timestamp, made date, raw bytea, status text not null,"
        " primary key (at, day, made, raw))"
    )
    application.execute(
        "insert into readings values"
        " ('2026-01-01 00:00:00.5+00', '2026-03-04 05:06', '2026-03-04', '\\x00ff', 'queued'),"
        " ('infinity', '-infinity', '2026-03-04', '', 'queued')"
    )
    said = dict(key=("at", "day", "made", "raw"), status="status", states=WORDS, stuck_after=1)
    mine = app.adopt("readings", **said)  # type: ignore[arg-type]  # what it asks for
    assert len(hand(app, mine).take(2)) == 2
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGDATESTYLE", "German, DMY")
    monkeypatch.setenv("PGOPTIONS", "-c bytea_output=escape")
    other = Dibs(url)
    theirs, ran = other.adopt("readings", **said), list[Any]()  # type: ignore[arg-type]  # likewise
    theirs.process(lambda row: ran.append(row))
    other.drain()
    application.wait(1.1)
    other.drain()
    assert not ran, "its owner lives"
    look = other.engine.run(
        rows.look(
            theirs.source(other.engine), ["2026-01-01 09:00:00.5+09", "04.03.2026 05:06", "04.03.2026", "\\x00ff"]
        )
    )
    assert look is not None
    assert look.job is not None
    other.close()


@on_postgres
@pytest.mark.parametrize("kind", ["int[]", "float8", "interval", "money", "int4range", "json"])
def test_keys_whose_text_hangs_on_the_session_are_refused(app: Dibs, kind: str) -> None:
    application = Application(app.engine)
    key = "unique" if kind != "json" else ""
    application.execute(f"create table t (id {kind} not null {key}, status text)")
    adopted = app.adopt("t", key="id", status="status", states=WORDS)
    with pytest.raises(NotAdoptable, match=r"id is|neither its primary key"):
        adopted.source(app.engine)


@on_postgres
@pytest.mark.parametrize(
    "kind, value",
    [("inet", "10.0.0.1"), ("char(5)", "ab"), ("numeric(10,3)", "1.500"), ("boolean", "true"), ("jsonb", '{"a": 1}'),
     ("time", "01:02:03"), ("moment", "2026-01-01 00:00+00"), ("mood", "sad")],
)  # fmt: skip
def test_other_keys_name_their_rows(app: Dibs, kind: str, value: str) -> None:
    application = Application(app.engine)
    application.execute("create domain moment as timestamptz; create type mood as enum ('sad', 'glad')")
    application.execute(f"create table t (id {kind} primary key, status text)")
    application.execute("insert into t values (%s, 'queued')", [value])
    adopted, ran = app.adopt("t", key="id", status="status", states=WORDS, retry=0.0), list[Any]()

    @adopted.process
    def go(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) == 1:
            raise ValueError("once more")

    app.drain()
    assert len(ran) == 2
    assert application.execute("select status from t") == [("completed",)]


@on_postgres
def test_a_status_may_be_of_a_domain(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create domain step as smallint; create table t (id int primary key, status step)")
    application.execute("insert into t values (1, 1)")
    ran, words = list[Any](), dict(PENDING=1, RUNNING=2, SUCCESSFUL=3, FAILED=4)
    app.adopt("t", key="id", status="status", states=words).process(lambda row: ran.append(row))
    app.drain()
    assert len(ran) == 1
    assert application.execute("select status from t") == [(3,)]


@on_postgres
def test_a_table_has_one_name(app: Dibs, application: Application) -> None:
    """Under two names its rows would have two owners."""
    application.execute("create schema shop; create table shop.orders (id int primary key, status text)")
    ((database,),) = application.execute("select current_database()")
    application.execute(f'alter database "{database}" set search_path = public, shop')
    stranger = Dibs(app.url)
    for name, right in (("public.stickers", "stickers"), ("orders", "shop.orders")):
        adopted = stranger.adopt(name, key="id", status="status", states=WORDS)
        with pytest.raises(NotAdoptable, match=f"say '{right}'"):
            adopted.source(stranger.engine)
    stranger.adopt("shop.orders", key="id", status="status", states=WORDS).source(stranger.engine)
    stranger.close()


@on_sqlite
def test_a_table_of_a_file_has_one_name(app: Dibs, application: Application) -> None:
    for name, words in (
        ("Stickers", "say 'stickers'"),
        ("main.stickers", "say 'stickers'"),
        ("nowhere.stickers", "no such table"),
    ):
        adopted = app.adopt(name, key="id", status="status", states=WORDS)
        with pytest.raises(NotAdoptable, match=words):
            adopted.source(app.engine)


@on_postgres
def test_who_wakes_workers_breaks_nothing(app: Dibs) -> None:
    """The triggers know the words of an enum that is not in the schema they look at; the function for cron too."""
    application = Application(app.engine)
    application.execute(
        "create type mood as enum ('queued', 'started', 'completed', 'failed');"
        "create table moods (id int primary key, status mood, began timestamptz)"
    )
    moods = app.adopt("moods", key="id", status="status", states=WORDS, started_at="began")
    for sql in (*wakes(table_of(app, moods)), recovers(table_of(app, moods), 300)):
        application.execute(sql)
    application.execute("insert into moods values (1, 'queued', null)")
    application.execute("update moods set status = 'started', began = now() - interval '1 hour'")
    with psycopg.connect(app.url) as raw:
        raw.execute("set search_path = pg_catalog")
        assert raw.execute('select dibs."recover moods"()').fetchone() == (1,)


@on_postgres
def test_functions_of_tables_with_long_names_are_told_apart(app: Dibs) -> None:
    application = Application(app.engine)
    names = ["t" * 60 + each for each in "ab"]
    for name in names:
        application.execute(f'create table "{name}" (id int primary key, status text, began timestamptz)')
        adopted = app.adopt(name, key="id", status="status", states=WORDS, started_at="began")
        for sql in (*wakes(table_of(app, adopted)), recovers(table_of(app, adopted), 300)):
            application.execute(sql)
    found = application.execute("select proname from pg_proc where proname like 'wake t%' or proname like 'recover t%'")
    assert len(found) == 4


# Locks

HURRIED = pytest.mark.parametrize("before", [None, ["0"]], ids=["whole", "hurried"])


@on_postgres
@pytest.mark.slow
@HURRIED
@pytest.mark.parametrize("way", [Back(Way.RELEASE), Back(Way.RETRY, 0.0), Back(Way.SNOOZE, 0.0), SUCCESS], ids=str)
def test_nobody_waits_in_a_circle(
    app: Dibs, application: Application, way: Change, before: Sequence[str] | None
) -> None:
    """Four workers take and hand back, and an application changes a row now and then: nobody is a victim."""
    stickers = adopt(app)
    source = stickers.source(app.engine)
    fill(application, 40)
    until, errors = time.monotonic() + 3, list[str]()

    def work(number: int) -> None:
        own = Dibs(app.url)
        worker = hand(own, stickers, 100 + number, before=before)
        held: list[tuple[Claimed, Change]] = []
        while time.monotonic() < until or held:
            try:
                turn = worker.turn(5 if time.monotonic() < until else 0, held)
                held = [(job, way) for job in turn.claimed]
                worker.turn(0, held)
                held = []
                if random.random() < 0.1:
                    own.engine.run(rows.notice(source))
            except DibsError as error:
                errors.append(str(error))
        own.close()

    def change() -> None:
        with psycopg.connect(app.url, autocommit=True) as raw:
            while time.monotonic() < until:
                raw.execute("update stickers set note = 'x' where id = %s", [random.randint(1, 40)])
                raw.execute(
                    "update stickers set status = 'queued' where id = %s and status = 'completed'",
                    [random.randint(1, 40)],
                )

    threads = [threading.Thread(target=work, args=[n]) for n in range(4)] + [threading.Thread(target=change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    app.close()
    clients = "datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
    while application.execute(f"select 1 from pg_stat_activity where {clients}"):  # who is gone has been counted
        time.sleep(0.01)
    [(deadlocks,)] = application.execute("select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks == 0


class Late(threading.Thread):
    """A turn that settles sticker 1 and takes a new row. In the block it has looked, and waits before it takes."""

    def __init__(self, application: Application, hand: Hand) -> None:
        super().__init__()
        self.application, self.hand, self.turn = application, hand, list[rows.Turn]()
        (self.mine,) = hand.take(1)

    def run(self) -> None:
        self.turn.append(self.hand.turn(1, [(self.mine, SUCCESS)]))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        with self.application.connection() as raw:
            raw.execute("update stickers set note = 'x' where id = 1")
            self.start()
            while self.application.execute(waits) != [(1,)]:
                pass
            yield

    def takes_nothing(self) -> bool:
        self.join()
        return self.turn[0].went_well and not self.turn[0].claimed


@on_postgres
@HURRIED
def test_a_row_that_was_taken_and_handed_back_since_we_looked_is_not_new(
    app: Dibs, application: Application, before: Sequence[str] | None
) -> None:
    """It looks as it did, and has a job by now, which this turn cannot see. Nor does it wait for who has that
    job: they may be waiting for the row."""
    stickers = adopt(app)
    fill(application, 2)
    other, late = hand(app, stickers, 8), Late(application, hand(app, stickers, before=before))
    with application.connection() as third:
        with late.waiting():
            (job,) = other.take(1)
            other.settle((job, Back(Way.RETRY, 3600.0)))
            third.execute("update dibs.jobs set version = version + 1 where id = %s", [job.id])
        waits = (
            "select pid from pg_stat_activity where %s = any (pg_blocking_pids(pid)) and datname = current_database()"
        )
        while late.is_alive():
            assert application.execute(waits, [third.info.backend_pid]) == []
    assert late.takes_nothing()
    assert statuses(application) == {"completed": 1, "queued": 1}


@on_postgres
@HURRIED
def test_a_row_that_was_asked_for_since_we_looked_is_not_new(
    app: Dibs, application: Application, before: Sequence[str] | None
) -> None:
    """It is as it was, and has a job again, which this turn cannot see. The turn comes to an end all the same."""
    stickers = adopt(app)
    fill(application, 2)
    other, late = hand(app, stickers, 8), Late(application, hand(app, stickers, before=before))
    (job,) = other.take(1)
    other.settle((job, Done(JobState.FAILED)))
    application.execute("update stickers set status = 'queued' where id = 2")
    with late.waiting():
        app.retry(job.id)
        application.execute("update dibs.jobs set run_at = run_at + interval '1 hour' where id = %s", [job.id])
    assert late.takes_nothing()
    assert statuses(application) == {"completed": 1, "queued": 1}


def test_a_row_that_was_handed_back_is_not_new(app: Dibs, application: Application) -> None:
    """Its job is there, and has it; so there is one way to take it, and one order of locks."""
    stickers = adopt(app)
    fill(application, 1)
    worker = hand(app, stickers)
    (job,) = worker.take(1)
    worker.settle((job, Back(Way.RELEASE)))
    assert not app.engine.run(rows.waiting(worker.adopted.source))
    (again,) = worker.take(1)
    assert again.id == job.id


def test_a_row_that_was_taken_over_may_snooze(app: Dibs, application: Application) -> None:
    stickers, ran = adopt(app, stuck_after=2), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(row["id"])
        raise Snooze(3600)

    fill(application, 1, "started")
    while not ran:
        app.drain()
        application.wait(2.1)
    app.drain()
    app.drain()
    assert ran == [1]
