"""What goes wrong with one row or one table keeps no other; and what cannot work is said before anything starts."""

from __future__ import annotations

import asyncio
import logging
import time
from threading import Thread
from typing import Any

import psycopg
import pytest

from dibs import Dibs, Job, JobState
from dibs.adopted.apply import apply
from dibs.adopted.check import check, plan
from dibs.adopted.source import Adopted
from dibs.errors import DatabaseError, Locked, NotAdoptable
from dibs.lifecycle import Back, Way
from dibs.operations import adopted as rows
from dibs.operations import jobs, workers
from dibs.operations.jobs import Filter
from dibs.worker.rows import RowLane, RowWatch
from dibs.worker.worker import Worker
from tests.adopted.schemas import WORDS
from tests.adopted.tables import Application
from tests.adopted.test_owners import application, hand
from tests.adopted.test_processing import TABLE, adopt, fill, statuses, until
from tests.apps import on_postgres, on_sqlite

__all__ = ["application"]


def refuse(application: Application, when: str, name: str = "sacred") -> None:
    """A trigger of the application."""
    if application.engine.name == "postgres":
        application.execute(
            "create or replace function refuses() returns trigger language plpgsql as "
            "$$ begin raise exception 'this row is sacred'; end $$"
        )
        application.execute(
            f"create trigger {name} before update on stickers for each row when ({when}) execute function refuses()"
        )
    else:
        application.execute(
            f"create trigger {name} before update on stickers when {when} "
            "begin select raise(abort, 'this row is sacred'); end"
        )


# One row


def test_a_row_that_cannot_be_claimed_keeps_no_other(
    app: Dibs, application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(application, "old.id in (1, 4) and new.status = 'started'")
    stickers, ran = adopt(app, batch=3), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(row["id"])

    fill(application, 8)
    app.drain(deadline=20)
    assert sorted(ran) == [2, 3, 5, 6, 7, 8]
    assert statuses(application) == {"completed": 6, "queued": 2}
    assert "Row 4 of stickers cannot be claimed" in caplog.text
    assert "this row is sacred" in caplog.text


@pytest.mark.slow
def test_many_rows_that_cannot_be_claimed_keep_no_other(
    app: Dibs, application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """More than are named in the log. They are tried again, and run when their table lets them."""
    refuse(application, "old.id <= 110 and new.status = 'started'")
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(row["id"])

    fill(application, 120)
    app.drain()
    assert sorted(ran) == list(range(111, 121))
    assert statuses(application) == {"completed": 10, "queued": 110}
    assert caplog.text.count("cannot be claimed: ") == 100
    assert caplog.text.count("and are not named") == 1
    application.execute("drop trigger sacred" + (" on stickers" if app.engine.name == "postgres" else ""))
    application.wait(600)
    app.drain()
    assert sorted(ran) == list(range(1, 121))
    assert statuses(application) == {"completed": 120}


def test_a_retry_that_cannot_be_claimed_keeps_no_other(
    app: Dibs, application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """The first attempt went well enough; the constraint came later."""
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        if row["id"] == 1 and not ran:
            ran.append(1)
            refuse(application, "old.id = 1 and new.status = 'started' and old.status <> 'started'")
            raise ValueError("once more")
        ran.append(row["id"])

    fill(application, 1)
    app.drain(deadline=20)
    application.execute("insert into stickers (id, status) values (2, 'queued'), (3, 'queued')")
    app.drain(deadline=20)
    assert ran == [1, 2, 3]
    (job,) = app.engine.run(jobs.page(Filter(state=JobState.RETRY))).jobs
    assert job.attempts == 1
    assert "Row 1 of stickers cannot be claimed" in caplog.text


async def test_a_worker_steps_over_a_row_that_cannot_be_claimed(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    refuse(application, "old.id = 1")
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    async def render(row: Any) -> None:
        ran.append(row["id"])

    fill(application, 5)
    async with app.running():
        await until(lambda: len(ran) == 4)
        await until(lambda: statuses(application) == {"completed": 4, "queued": 1})


@on_postgres
async def test_a_row_that_the_application_holds_keeps_no_other(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    stickers, ended, go = adopt(app), list[int](), asyncio.Event()

    @stickers.process
    async def render(row: Any) -> None:
        if row["id"] == 1:
            await go.wait()
        ended.append(row["id"])

    fill(application, 3)
    with psycopg.connect(app.url) as raw:
        async with app.running() as worker:
            await until(lambda: len(ended) == 2)
            raw.execute("update stickers set note = 'mine' where id = 1")
            go.set()
            await until(lambda: len(ended) == 3)
            for n in range(4, 9):
                application.execute("insert into stickers (id, status) values (%s, 'queued')", [n])
            await until(lambda: statuses(application) == {"completed": 7, "started": 1})
            await until(lambda: worker.stats.successful == 7)  # it counts when it has the answer
            raw.commit()
            await until(lambda: statuses(application) == {"completed": 8})
    assert sorted(ended) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert worker.stats.successful == 8
    assert worker.stats.refused == 0


@on_postgres
def test_a_retry_whose_row_the_application_holds_keeps_no_other(app: Dibs, application: Application) -> None:
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) <= 2:
            raise ValueError("once more")

    fill(application, 2)
    app.drain(limit=2)
    with psycopg.connect(app.url) as raw:
        raw.execute("update stickers set note = 'mine' where id = 1")
        application.execute("insert into stickers (id, status) values (3, 'queued'), (4, 'queued')")
        drain = Thread(target=app.drain)
        drain.start()
        while sorted(ran) != [1, 2, 2, 3, 4]:
            assert drain.is_alive()
            time.sleep(0.01)
    drain.join()
    while statuses(application) != {"completed": 4}:
        application.wait(10)
        app.drain()
    assert sorted(ran) == [1, 1, 2, 2, 3, 4]


@on_postgres
def test_a_drain_waits_for_a_row_that_the_application_holds(
    app: Dibs, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    stickers = adopt(app)
    raw = psycopg.connect(app.url)

    @stickers.process
    def render(row: Any) -> None:
        raw.execute("update stickers set note = 'mine' where id = 1")

    fill(application, 1)
    tried, turn = list[int](), RowLane.turn

    async def counted(lane: RowLane, *given: Any) -> Any:
        found = await turn(lane, *given)
        tried.extend(found.later)
        return found

    monkeypatch.setattr(RowLane, "turn", counted)

    def release() -> None:
        while len(tried) < 3:  # it was in vain, and is tried again
            time.sleep(0.01)
        raw.commit()

    thread = Thread(target=release)
    thread.start()
    report = app.drain()
    thread.join()
    raw.close()
    assert (report.successful, report.refused) == (1, 0)
    assert statuses(application) == {"completed": 1}


def test_a_row_that_cannot_be_written_is_not_run_again_for_ever(app: Dibs, application: Application) -> None:
    stickers, ran = adopt(app, stuck_after=1, max_attempts=1), list[int]()

    @stickers.process
    def render(row: Any) -> None:
        ran.append(row["id"])

    refuse(application, "old.status = 'started'")
    fill(application, 1)
    app.drain()
    application.wait(1.1)
    app.drain()
    application.wait(1.1)
    app.drain()
    assert ran == [1]
    (job,) = app.engine.run(jobs.page(Filter(state=JobState.FAILED))).jobs
    application.execute("drop trigger sacred" + (" on stickers" if app.engine.name == "postgres" else ""))
    app.retry(int(job.id))
    app.drain()
    assert ran == [1, 1]
    assert statuses(application) == {"completed": 1}


def test_a_row_that_is_no_longer_meant_has_its_hook(app: Dibs, application: Application) -> None:
    """Softly deleted while it ran for the last time: it failed all the same, and is refunded."""
    refunded = list[int]()

    def refund(job: Job, connection: Any) -> None:
        refunded.append(int(job.id))

    stickers = adopt(app, where="note is null", max_attempts=1, on_failure=refund)

    @stickers.process
    def render(row: Any) -> None:
        application.execute("update stickers set note = 'deleted' where id = 1")
        raise ValueError("broken")

    fill(application, 1)
    app.drain()
    assert len(refunded) == 1
    assert statuses(application) == {"failed": 1}


def test_a_row_that_is_no_longer_meant_can_be_cancelled(app: Dibs, application: Application) -> None:
    stickers = adopt(app, where="note is null")
    stickers.process(lambda row: None)
    fill(application, 1)
    (job,) = hand(app, stickers).take(1)
    application.execute("update stickers set note = 'deleted' where id = 1")
    app.cancel(int(job.id))
    app.drain()
    assert statuses(application) == {"failed": 1}
    assert app.get(int(job.id)).state == "CANCELLED"


def test_a_row_that_fails_by_crashes_says_so(app: Dibs, application: Application) -> None:
    stickers = adopt(app, max_attempts=1)
    stickers.process(lambda row: None)
    fill(application, 1)
    (job,) = hand(app, stickers, max_attempts=1).take(1)
    app.engine.run(workers.recover(known=[7]))  # type: ignore[list-item]  # a number
    while statuses(application) != {"failed": 1}:
        app.drain()
    error = app.get(int(job.id)).error
    assert error
    assert application.execute("select error from stickers") == [(error,)]


async def test_rows_of_the_dead_follow_each_other(url: str) -> None:
    """They are suspects, which run one at a time. Each ends in its transaction, after which there is nothing to settle:
    the next one begins all the same, and does not wait for a look."""
    app = Dibs(url, look=3600.0)
    application = Application(app.engine)
    application.execute(TABLE)
    stickers, ran = adopt(app, poll=3600.0), list[int]()

    @stickers.process
    async def render(row: Any) -> None:
        async with row.transaction():
            ran.append(row["id"])

    fill(application, 8)
    assert len(hand(app, stickers).take(8)) == 8
    app.engine.run(workers.recover(known=[7]))  # type: ignore[list-item]  # a number
    application.wait(10)
    async with app.running():
        await until(lambda: statuses(application) == {"completed": 8})
    assert sorted(ran) == [1, 2, 3, 4, 5, 6, 7, 8]
    await app.aclose()


async def test_rows_that_were_mended_are_claimed_once_more(url: str) -> None:
    """Who mends them has their jobs locked for a moment, in which a claim passes over them."""
    app = Dibs(url)
    application = Application(app.engine)
    application.execute(TABLE)
    stickers, woken = adopt(app), list[bool]()
    fill(application, 1)
    hand(app, stickers).take(1)
    app.engine.run(workers.recover(known=[7]))  # type: ignore[list-item]  # a number
    watch = RowWatch(app.engine, stickers.source(app.engine), lambda: False, lambda: woken.append(True))
    for now in (1_000.0, 2_000.0):
        await watch.run_once(now)
    assert woken == [True]
    await app.aclose()


# One table among others


@pytest.mark.slow
async def test_rows_have_their_turn_beside_a_busy_queue(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    stickers, rendered, ran = adopt(app), list[int](), list[int]()

    @stickers.process
    async def render(row: Any) -> None:
        rendered.append(len(ran))

    @app.task
    async def quick(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(0.001)

    fill(application, 20)
    await app.aenqueue_many(quick.call(n=n) for n in range(6_000))
    async with app.running():
        await until(lambda: len(rendered) == 20)
        await until(lambda: len(ran) == 6_000)
    assert max(rendered) < 5_000, "jobs that had begun before the last row"


def test_a_drain_gives_rows_their_turn(app: Dibs, application: Application) -> None:
    stickers, ran = adopt(app), list[str]()

    @stickers.process
    async def render(row: Any) -> None:
        ran.append("row")

    @app.task
    async def quick(n: int) -> None:
        ran.append("job")

    fill(application, 10)
    app.enqueue_many(quick.call(n=n) for n in range(200))
    app.drain(limit=100, concurrency=5)
    assert ran.count("row") == 10


def test_one_broken_table_does_not_hide_the_other_queues(app: Dibs, application: Application) -> None:
    adopt(app)
    app.adopt("nothing", key="id", status="status", states=WORDS)
    fill(application, 2)
    broken, fine = app.queues()
    assert (broken.name, broken.waiting, fine.name, fine.waiting) == ("nothing", 0, "stickers", 2)
    assert "there is no such table" in str(broken.problem)
    assert fine.problem is None


@pytest.mark.parametrize("key", ["7\nWorker started: evil", "\u202e7"])
def test_a_key_is_one_line_of_the_log(app: Dibs, caplog: pytest.LogCaptureFixture, key: str) -> None:
    application = Application(app.engine)
    application.execute("create table t (id varchar(99) primary key not null, status text)")
    application.execute("create table outs (x varchar(99))")
    application.execute("insert into t values (%s, 'queued')", [key])
    application.execute("insert into outs values (%s)", [key])
    adopted = app.adopt("t", key="id", status="status", states=WORDS, output=("outs", "x"))
    adopted.process(lambda row: None)
    with caplog.at_level(logging.INFO, "dibs"):
        app.drain()
    assert "a duplicate was prevented" in caplog.text
    said = [record.getMessage() for record in caplog.records if record.name.startswith("dibs")]
    assert not any("\n" in text or "\u202e" in text for text in said)


# Before anything starts


THINGS = """create table things (id int primary key, status text, uid uuid, words text, document json, flag boolean);
create table outs (sid text)"""


@on_postgres
@pytest.mark.parametrize(
    "more",
    [dict(worker="uid"), dict(finished_at="uid"), dict(started_at="words"), dict(error="document"),
     dict(attempts="flag"), dict(priority="document"), dict(order_by="document"), dict(output=("outs", "sid"))],
    ids=str,
)  # fmt: skip
def test_columns_of_the_wrong_type_are_said_before_anything_starts(app: Dibs, more: dict[str, Any]) -> None:
    application = Application(app.engine)
    application.execute(THINGS)
    application.execute("insert into things (id, status) values (1, 'queued')")
    things = app.adopt("things", key="id", status="status", states=WORDS, **more)
    things.process(lambda row: None)
    with pytest.raises(NotAdoptable, match="the database does not understand what is said of it") as told:
        app.drain()
    assert "dibs db migrate" not in str(told.value)


@pytest.mark.parametrize("use", ["attempts", "error", "finished_at"])
def test_a_column_that_cannot_be_written_is_said_before_anything_starts(app: Dibs, use: str) -> None:
    application = Application(app.engine)
    kind = {"attempts": "int", "error": "text", "finished_at": "timestamp"}[use]
    application.execute(
        f"create table things (id int primary key, status text, made {kind} generated always as (null) stored)"
    )
    application.execute("insert into things (id, status) values (1, 'queued')")
    things = app.adopt("things", key="id", status="status", states=WORDS, **{use: "made"})
    things.process(lambda row: None)
    with pytest.raises(NotAdoptable, match=r"the database does not understand what is said of it.*made"):
        app.drain()
    assert app.engine.run(jobs.page(Filter())).jobs == []


def test_every_statement_is_tried_before_anything_starts(app: Dibs, application: Application) -> None:
    source = adopt(app).source(app.engine)
    tried = [step.sql.partition("explain ")[2].removeprefix("query plan ") for step in source.steps["trial"]]
    for name in {"turn", "turn_after", "done", "new_after", "first", "put_off", "held", "mend", "notice"} & {
        *source.steps
    }:
        assert source.steps[name][-1].sql in tried


@on_postgres
@pytest.mark.parametrize("kind", ["smallint", "numeric(6, 2)", "numeric(9)"])
@pytest.mark.parametrize("use", ["started_at", "finished_at"])
def test_a_number_too_small_for_a_time_is_said_before_anything_starts(app: Dibs, use: str, kind: str) -> None:
    application = Application(app.engine)
    application.execute(
        f"create domain small as {kind}; create table things (id int primary key, status text, made small)"
    )
    things = app.adopt("things", key="id", status="status", states=WORDS, **{use: "made"})
    things.process(lambda row: None)
    with pytest.raises(NotAdoptable, match=r"made is a small, too small for seconds since 1970"):
        app.drain()


@on_postgres
async def test_a_table_locked_by_a_migration_is_said_so(async_app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    fill(application, 1)
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    async def render(row: Any) -> None:
        ran.append(row["id"])

    with psycopg.connect(app.url) as raw:
        raw.execute("lock table stickers in access exclusive mode")
        began = time.monotonic()
        with pytest.raises(DatabaseError, match="lock timeout"):
            await app.adrain(deadline=3)
        assert time.monotonic() - began < 10
    async with app.running():
        await until(lambda: ran == [1])
        with psycopg.connect(app.url) as raw:
            raw.execute("lock table stickers in access exclusive mode")
            raw.execute("insert into stickers (id, status) values (2, 'queued')")
            await until(lambda: "lock timeout" in caplog.text)
        await until(lambda: ran == [1, 2])


@pytest.mark.parametrize("name", ["a", "key", "room", "after", "picked", "job"])
@on_sqlite
def test_conditions_may_be_as_short_as_they_like(app: Dibs, name: str) -> None:
    application = Application(app.engine)
    application.execute(f'create table t (id integer primary key, status text, "{name}" boolean)')
    application.execute("insert into t values (1, 'queued', 1), (2, 'queued', 0)")
    adopted, ran = app.adopt("t", key="id", status="status", states=WORDS, where=name, retry=0.0), list[int]()

    @adopted.process
    def go(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) == 1:
            raise ValueError("once more")

    app.drain()
    assert ran == [1, 1]


@pytest.mark.parametrize("name", ["j", "r", "p", "w", "c", "m", "o", "q", "d", "t", "J"])
def test_tables_may_be_named_like_anything(app: Dibs, name: str) -> None:
    application = Application(app.engine)
    columns = "id integer primary key, status text, error text, attempts integer, key text, job integer, name text"
    application.execute(
        f'create table "{name}" ({columns}); '
        if app.engine.name == "postgres"
        else f'create table "{name}" ({columns})'
    )
    application.execute("create table outs (x integer)")
    application.execute(f"insert into \"{name}\" (id, status) values (1, 'queued')")
    adopted, ran = (
        app.adopt(
            name,
            key="id",
            status="status",
            states=WORDS,
            where=f'key is null and "{name}".job is null',
            output=("outs", "x"),
            error="error",
            attempts="attempts",
            retry=0.0,
        ),
        list[int](),
    )

    @adopted.process
    def go(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) == 1:
            raise ValueError("once more")

    app.drain()
    assert ran == [1, 1]
    assert application.execute(f'select status from "{name}"') == [("completed",)]
    source = adopted.source(app.engine)
    assert app.engine.run(rows.trouble(source)) == ([], [], [], 0)
    assert app.engine.run(rows.mend(source)) == app.engine.run(rows.notice(source)) == 0


@on_sqlite
def test_bytes_in_a_file_are_bytes(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create table t (id integer primary key, status text, data blob, loose text)")
    application.execute(
        "insert into t values (1, 'queued', x'00ff', x'01'), (2, 'queued', 'a text', '{\"bytes\": \"00\"}')"
    )
    adopted, seen = app.adopt("t", key="id", status="status", states=WORDS), dict[int, Any]()

    @adopted.process
    def go(row: Any) -> None:
        seen[row["id"]] = (row["data"], row["loose"])

    app.drain()
    assert seen == {1: (b"\x00\xff", b"\x01"), 2: ("a text", '{"bytes": "00"}')}


# How often, and by which ways


async def look(worker: Worker, times: int) -> None:
    """At the queues, as often as that."""
    looked, looks = worker.wakeups.looked, list[float]()

    def count() -> None:
        looks.append(time.monotonic())
        assert looked is not None
        looked()

    def enough() -> bool:
        worker.wakeups.sooner.set()
        return len(looks) >= times

    worker.wakeups.looked = count
    await until(enough)


async def test_rows_are_looked_for_as_seldom_as_their_user_says(url: str) -> None:
    app = Dibs(url, look=0.05)
    application = Application(app.engine)
    application.execute(TABLE)
    stickers, ran = adopt(app, poll=3600.0), list[int]()

    @stickers.process
    async def render(row: Any) -> None:
        ran.append(row["id"])
        if len(ran) == 1:
            raise ValueError("once more")  # a retry is found in any case

    fill(application, 1)
    async with app.running() as worker:
        await until(lambda: statuses(application) == {"completed": 1})  # who settles may claim in the same turn
        await until(lambda: worker.feeds["stickers"].dry)
        if app.engine.name == "postgres":
            application.execute("insert into stickers (id, status) values (2, 'queued')")
            await look(worker, 10)
            assert ran == [1, 1]
            worker.watches[0].sooner.set()
            await until(lambda: ran == [1, 1, 2])
    await app.aclose()


@on_postgres
def test_a_look_at_the_dead_writes_nothing_of_the_living(app: Dibs, application: Application) -> None:
    """Rows whose retry waits are none of its business, however many there are."""
    stickers = adopt(app)
    source = stickers.source(app.engine)
    application.execute("insert into stickers (id, status) select n, 'queued' from generate_series(1, 500) n")
    worker = hand(app, stickers)
    worker.settle(*[(job, Back(Way.RETRY, 3600.0)) for job in worker.take(500)])
    written = "select id, ctid::text, xmin::text, xmax::text from dibs.jobs order by id"  # a lock writes xmax
    before = application.execute(written)
    assert app.engine.run(rows.mend(source)) == 0
    assert application.execute(written) == before


# Behind a pooler


@on_postgres
async def test_behind_a_pooler_the_lane_has_its_settings_all_the_same(app: Dibs, url: str) -> None:
    application = Application(app.engine)
    application.execute(TABLE)
    fill(application, 1)
    pooled = Dibs(url + ("&" if "?" in url else "?") + "pooled=true")
    stickers = adopt(pooled)
    session = pooled.engine.session("rows")
    source = stickers.source(pooled.engine)
    with psycopg.connect(app.url) as raw:
        raw.execute("lock table stickers in access exclusive mode")
        with pytest.raises(Locked):
            await session.arun(rows.waiting(source))
    assert await session.arun(rows.waiting(source))
    await session.aclose()
    await pooled.aclose()


# What a check says


def stuck(app: Dibs, adopted: Adopted) -> list[str]:
    return app.engine.run(rows.trouble(adopted.source(app.engine))).stuck


def test_a_row_of_a_silent_worker_is_stuck(app: Dibs, application: Application) -> None:
    """Its row in the list of workers is still there: nobody has judged it yet."""
    stickers = adopt(app)
    fill(application, 1)
    hand(app, stickers).take(1)
    assert stuck(app, stickers) == []
    age(application, 1600)
    assert stuck(app, stickers) == ["1"]


def age(application: Application, seconds: float) -> None:
    """All workers have been silent for so long."""
    if application.engine.name == "sqlite":
        application.execute(f"update dibs_workers set beat_at = beat_at - {seconds * 1_000_000:.0f}")
    else:
        application.execute(f"update dibs.workers set beat_at = beat_at - interval '{seconds} s'")


def test_a_row_that_waits_for_us_is_not_stuck(app: Dibs, application: Application) -> None:
    """For its hook, for its next attempt since its worker died, or for its time to be over."""
    stickers = adopt(app)
    fill(application, 2)
    worker = hand(app, stickers)
    one, _ = worker.take(2)
    worker.settle((one, Back(Way.FINISH, 0.0)))
    app.engine.run(workers.recover(known=[7]))  # type: ignore[list-item]  # a number
    application.execute("insert into stickers (id, status) values (3, 'started')")
    assert stuck(app, stickers) == ["3"]
    app.engine.run(rows.notice(stickers.source(app.engine)))
    assert statuses(application) == {"started": 3}
    assert stuck(app, stickers) == []
    application.wait(700)
    assert sorted(stuck(app, stickers)) == ["1", "2", "3"], "nobody comes for them"


def test_outputs_of_no_row_are_no_duplicates(app: Dibs, application: Application) -> None:
    application.execute("create table prints (sticker integer)")
    application.execute("insert into prints values (null), (null), (1), (1), (2)")
    found = app.engine.run(rows.trouble(adopt(app, output=("prints", "sticker")).source(app.engine)))
    assert found.duplicates == [(1, 2)]


@on_postgres
def test_a_partitioned_table_with_its_indexes_is_good(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute(
        """create table events (day date not null, no int not null, status text not null, primary key (day, no))
           partition by range (day);
           create table events_1 partition of events for values from ('2026-01-01') to ('2026-02-01');
           create table events_2 partition of events for values from ('2026-02-01') to ('2026-03-01')"""
    )
    application.execute(
        "insert into events select date '2026-01-01' + n % 59, n, case when n < 2000 then 'queued' else 'completed' end"
        " from generate_series(1, 6000) n"
    )
    events = app.adopt("events", key=("no", "day"), status="status", states=WORDS)
    before = check(events, app.engine)
    assert any("a claim reads more" in each.problem for each in before.findings)
    for each in plan(events, app.engine):
        apply(each, app.engine)
    application.execute("analyze events")
    assert check(events, app.engine).findings == []


def test_an_index_for_another_word_is_not_ours(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create table t (id integer primary key, status integer)")
    application.execute("create index t_running on t (id) where status = 10")
    words = dict(PENDING=1, RUNNING=10, SUCCESSFUL=2, FAILED=3)
    found = plan(app.adopt("t", key="id", status="status", states=words), app.engine)
    assert [("waiting" in each.sql, "running" in each.sql) for each in found] == [(True, False)]


TENANTS = "create table t (id integer primary key, status varchar(9), tenant integer, next varchar(9), note text)"


def lacks(app: Dibs, **more: Any) -> set[str]:
    """Which of the two indexes."""
    found = plan(app.adopt("t", key="id", status="status", states=WORDS, **more), app.engine)
    return {use for use in ("waiting", "running") if any(f"t_dibs_{use}" in each.sql for each in found)}


@pytest.mark.parametrize(
    "where",
    ["status = 'queued' and tenant = 7", "next = 'queued'", "status = 'queued' and next = 'queued'",
     "status <> 'queued'", "status = 'queue'", "status = 'queued' or tenant = 7", "status in ('queued', 'started')"],
)  # fmt: skip
def test_an_index_for_fewer_rows_is_not_taken_for_ours(app: Dibs, where: str) -> None:
    application = Application(app.engine)
    application.execute(TENANTS)
    application.execute(f"create index theirs on t (id) where {where}")
    assert lacks(app) == {"waiting", "running"}


@pytest.mark.parametrize("where", ["status = 'queued'", "((\"status\") = 'queued')", "Status='queued'"])
def test_an_index_for_just_those_rows_is_as_good_as_ours(app: Dibs, where: str) -> None:
    application = Application(app.engine)
    application.execute(TENANTS)
    application.execute(f"create index theirs on t (id)\nwhere {where}")
    assert lacks(app) == {"running"}


@pytest.mark.parametrize("where", ["status = 'queued' and note is null", "(note is null) AND status = 'queued'"])
def test_an_index_for_the_rows_that_are_meant_is_good(app: Dibs, where: str) -> None:
    application = Application(app.engine)
    application.execute(TENANTS)
    application.execute(f"create index theirs on t (id) where {where}")
    assert lacks(app, where="note is null -- not those that are noted") == {"running"}


def test_an_index_of_ours_for_another_word_is_made_anew(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute(TENANTS)
    application.execute("create index t_dibs_waiting on t (id) where status = 'new'")
    adopted = app.adopt("t", key="id", status="status", states=WORDS)
    first, *_ = plan(adopted, app.engine)
    assert (first.sql.startswith("drop index"), "other rows" in first.why) == (True, True)
    for each in plan(adopted, app.engine):
        apply(each, app.engine)
    assert plan(adopted, app.engine) == []


@on_postgres
@pytest.mark.slow
def test_an_index_waits_for_whoever_has_a_transaction_open(app: Dibs, application: Application) -> None:
    """For longer than anything else of ours, and says for whom."""
    hasty, told = Dibs(app.url, deadline=0.5), list[str]()
    first, *others = plan(adopt(app), app.engine)
    with psycopg.connect(app.url, application_name="theirs") as raw:
        raw.execute("insert into stickers (id, status) values (1, 'queued')")

        def tell(line: str) -> None:
            told.append(line)
            raw.rollback()

        apply(first, hasty.engine, tell)
        assert f"process {raw.info.backend_pid} (theirs), open since " in told[0]
    assert plan(adopt(Dibs(app.url)), app.engine) == others
    with hasty.engine.connection() as raw:  # type: ignore[attr-defined]  # a server's
        assert raw.execute("show lock_timeout").fetchone() == ("500ms",)
    hasty.close()
