"""An adopted table in an app: drained, and worked on by a worker beside ordinary tasks."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import UUID

import pytest

from dibs import Dibs, Job, JobState, current_job
from dibs.adopted.check import plan
from dibs.adopted.source import Adopted
from dibs.errors import ConfigError, DuplicateTask, InvalidOption, NotAdoptable, UniqueKeyHeld
from dibs.operations import adopted as rows
from dibs.operations import jobs, workers
from dibs.operations.jobs import Filter
from tests.adopted.schemas import WORDS
from tests.adopted.tables import Application, Hand
from tests.apps import on_postgres, on_sqlite

PATIENCE = 30.0
TABLE = """create table stickers (
  id integer primary key, status varchar(20) not null, error text, attempts integer, note text)"""
FILES = "create table files (sticker integer not null, path text)"


@pytest.fixture
def application(app: Dibs) -> Application:
    """Whose table it is."""
    application = Application(app.engine)
    application.execute(TABLE)
    application.execute(FILES)
    return application


@pytest.fixture
def stickers(app: Dibs, application: Application) -> Adopted:
    """Adopted, with columns for errors and attempts."""
    return adopt(app)


def adopt(app: Dibs, **more: Any) -> Adopted:
    said = dict(key="id", status="status", states=WORDS, error="error", attempts="attempts", retry=0.0, poll=0.05)
    return app.adopt("stickers", **said | more)


def fill(application: Application, count: int, status: str = "queued") -> None:
    for n in range(count):
        application.execute("insert into stickers (id, status) values (%s, %s)", [n + 1, status])


def statuses(application: Application) -> dict[str, int]:
    return dict(application.execute("select status, count(*) from stickers group by status"))


def test_rows_are_drained(app: Dibs, application: Application, stickers: Adopted) -> None:
    ran: list[int] = []

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    fill(application, 12)
    report = app.drain(concurrency=3)
    assert sorted(ran) == list(range(1, 13))
    assert (report.available, report.claimed, report.successful) == (12, 12, 12)
    assert statuses(application) == {"completed": 12}
    render({"id": 99})
    assert ran[-1] == 99, "it stays an ordinary function"


def test_a_row_that_fails_is_tried_again_and_then_failed(
    app: Dibs, application: Application, stickers: Adopted
) -> None:
    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        raise ValueError(f"sticker {row['id']} is broken")

    fill(application, 1)
    report = app.drain()
    assert (report.claimed, report.retried, report.failed) == (3, 2, 1)
    (row,) = application.execute("select status, error, attempts from stickers")
    assert row == ("failed", "ValueError: sticker 1 is broken", 3)


def test_columns_that_may_not_be_null_are_never_null(app: Dibs) -> None:
    """A text has nothing in it then; a time stays as it was."""
    application, long_ago = Application(app.engine), "2001-02-03 04:05:06"
    application.execute(
        "create table stickers (id integer primary key, status text not null, attempts integer, "
        f"error text not null default '', ended timestamp not null default '{long_ago}')"
    )
    stickers = adopt(app, finished_at="ended", max_attempts=2)
    shown = "select id, status, error, substr(cast(ended as varchar(30)), 1, 19) = %s from stickers order by id"
    during = list[Any]()

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        during.append(application.execute(shown, [long_ago])[row["id"] - 1])
        if row["id"] == 2:
            raise ValueError("broken")

    fill(application, 2)
    app.drain(concurrency=1)
    assert [each[0] for each in during] == [1, 2, 2]
    assert all(each[3] for each in during), "it has not ended"
    assert [each[:3] for each in application.execute(shown, [long_ago])] == [
        (1, "completed", ""),
        (2, "failed", "ValueError: broken"),
    ]
    assert not any(each[3] for each in application.execute(shown, [long_ago]))


def test_the_last_state_and_its_effects_commit_together(app: Dibs, application: Application, stickers: Adopted) -> None:
    @stickers.process
    async def render(row: Any) -> None:
        mark = "%s" if app.engine.name == "postgres" else "?"
        async with row.transaction() as connection:
            await connection.execute(f"insert into files (sticker) values ({mark})", [row["id"]])
            if row["id"] == 2:
                raise ValueError("not this one")

    fill(application, 3)
    app.drain()
    assert application.execute("select sticker from files order by 1") == [(1,), (3,)]
    assert statuses(application) == {"completed": 2, "failed": 1}


def test_a_refund_happens_once_in_the_transaction_that_says_failed(app: Dibs, application: Application) -> None:
    application.execute("create table refunds (sticker integer)")

    def refund(job: Job, connection: Any) -> None:
        mark = "%s" if app.engine.name == "postgres" else "?"
        connection.execute(f"insert into refunds (sticker) values ({mark})", [int(job.payload["key"][0])])

    stickers = adopt(app, on_failure=refund, max_attempts=2)

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        raise ValueError("broken")

    fill(application, 2)
    app.drain()
    assert application.execute("select sticker from refunds order by 1") == [(1,), (2,)]
    assert statuses(application) == {"failed": 2}


def test_a_row_whose_output_is_there_is_completed_and_not_run(
    app: Dibs, application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    stickers = adopt(app, output=("files", "sticker"))
    ran: list[int] = []

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    fill(application, 3)
    application.execute("insert into files (sticker) values (2)")
    with caplog.at_level(logging.INFO, "dibs"):
        app.drain()
    assert sorted(ran) == [1, 3]
    assert statuses(application) == {"completed": 3}
    assert "Row 2 of stickers has its output already: a duplicate was prevented" in caplog.text


def test_rows_that_need_no_run_are_not_the_end(app: Dibs, application: Application) -> None:
    stickers = adopt(app, output=("files", "sticker"), batch=3)
    ran: list[int] = []

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    fill(application, 12)
    application.execute("insert into files (sticker) select id from stickers where id <= 9")
    app.drain()
    assert sorted(ran) == [10, 11, 12]
    assert statuses(application) == {"completed": 12}


@on_postgres
def test_a_row_that_its_table_refuses_keeps_no_other(
    app: Dibs, application: Application, stickers: Adopted, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger of the application that lets nobody end row 2."""
    application.execute(
        "create function refuses() returns trigger language plpgsql as "
        "$$ begin raise exception 'row 2 is sacred'; end $$"
    )
    application.execute(
        "create trigger sacred before update on stickers for each row "
        "when (old.id = 2 and old.status = 'started') execute function refuses()"
    )

    @stickers.process
    def render(row: dict[str, Any]) -> None: ...

    fill(application, 5)
    app.drain()
    assert statuses(application) == {"completed": 4, "started": 1}
    assert "Row 2 of stickers cannot be written" in caplog.text
    (job,) = app.engine.run(jobs.page(Filter(state=JobState.FAILED))).jobs
    assert "row 2 is sacred" in str(job.error)


@on_sqlite
def test_keys_that_cannot_name_a_row(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create table notes (id text primary key, status text)")
    application.execute("insert into notes values (null, 'queued'), ('a', 'queued')")
    notes, ran = app.adopt("notes", key="id", status="status", states=WORDS), list[str]()

    @notes.process
    def note(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    app.drain()
    assert ran == ["a"]


@on_sqlite
def test_a_condition_may_end_in_a_comment_with_an_apostrophe(app: Dibs, application: Application) -> None:
    stickers = adopt(app, where="note is null -- don't take :those", max_attempts=2)

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        raise ValueError("broken")

    fill(application, 2)
    app.drain()
    assert statuses(application) == {"failed": 2}


def test_a_condition_may_name_its_own_table(app: Dibs, application: Application) -> None:
    """Or not, as it likes."""
    application.execute("create table bans (sticker integer, path text)")
    application.execute("insert into bans values (2, '%')")
    same = 'sticker = stickers.id and "stickers" .id = id and note is null'
    stickers, ran = (
        adopt(app, where=f"not exists (select 1 from bans where {same} and path = '%') -- banned"),
        list[int](),
    )

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])
        if ran == [1]:
            raise ValueError("once more")

    fill(application, 3)
    app.drain()
    assert sorted(ran) == [1, 1, 3]
    application.execute("update stickers set status = 'started'")
    assert app.engine.run(rows.notice(stickers.source(app.engine))) == 2


def test_a_crash_after_the_output_and_before_the_status_is_completed(app: Dibs, application: Application) -> None:
    """The owner is gone for certain; its output is there, its last word is not."""
    stickers = adopt(app, output=("files", "sticker"))
    ran: list[int] = []

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    fill(application, 1)
    source = stickers.source(app.engine)
    app.engine.run(workers.enlist(7, "dead", lease=15, beat=3))
    holder = type("Holder", (), {"source": source, "engine": app.engine})()
    assert len(Hand(holder, 7).take()) == 1  # type: ignore[arg-type]  # what it asks for
    application.execute("insert into files (sticker) values (1)")
    app.engine.run(workers.recover(known=[7]))  # type: ignore[list-item]  # a number
    report = app.drain()
    while statuses(application) != {"completed": 1}:  # recovered jobs are due within a second
        report = app.drain()
    assert not ran
    assert report.failed == 0
    assert app.engine.run(rows.trouble(source)).duplicates == []


def test_what_others_left_behind_is_run(app: Dibs, application: Application) -> None:
    stickers = adopt(app, stuck_after=1)
    ran: list[int] = []

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    fill(application, 2, "started")
    app.drain()  # notices them
    while len(ran) < 2:
        app.drain()
    assert sorted(ran) == [1, 2]
    assert statuses(application) == {"completed": 2}


@pytest.mark.parametrize(
    "kind, value",
    [("bigint", 1_750_000_000_000), ("float8", 1.75e15), ("float8", "NaN"), ("timestamp", "9999-12-31 00:00:00"),
     ("timestamp", "1960-01-01 00:00:00"), ("timestamp", "infinity")],
)  # fmt: skip
def test_a_start_that_cannot_be_is_not_known(app: Dibs, kind: str, value: Any) -> None:
    """Its row is taken over, and keeps no other from being noticed."""
    application = Application(app.engine)
    application.execute(f"create table t (id integer primary key, status text, began {kind})")
    application.execute("insert into t values (1, 'started', %s), (2, 'started', null)", [value])
    adopted, ran = app.adopt("t", key="id", status="status", states=WORDS, started_at="began"), list[int]()
    adopted.process(lambda row: ran.append(row["id"]))
    app.drain()
    due = [job.run_at for job in app.engine.run(jobs.page(Filter())).jobs]
    assert len(due) == 2
    assert all(250 < (each - datetime.now(UTC)).total_seconds() <= 300 for each in due if each)
    application.wait(301)
    app.drain()
    assert sorted(ran) == [1, 2]


def test_ordinary_tasks_run_beside_it(app: Dibs, application: Application, stickers: Adopted) -> None:
    ran: Counter[str] = Counter()

    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        ran["row"] += 1

    @app.task
    async def other() -> None:
        ran["task"] += 1

    fill(application, 7)
    app.enqueue_many(other.call() for _ in range(7))
    app.drain()
    assert ran == {"row": 7, "task": 7}


@asynccontextmanager
async def at_work(app: Dibs, **options: Any) -> Any:
    async with app.running(**options) as worker:
        yield worker


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():  # noqa: ASYNC110  # a database cannot set an event
            await asyncio.sleep(0.01)


async def test_a_worker_runs_rows_as_they_come(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    stickers, ran = adopt(app), list[int]()

    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    async with at_work(app):
        for n in range(1, 4):
            application.execute("insert into stickers (id, status) values (%s, %s)", [n, "queued"])
            await until(lambda n=n: len(ran) == n)  # type: ignore[misc]  # of the loop
        application.execute("update stickers set status = 'queued' where id = 2")
        await until(lambda: len(ran) == 4)
    assert ran == [1, 2, 3, 2]
    assert statuses(application) == {"completed": 3}


@on_sqlite
async def test_a_change_of_the_file_wakes_a_worker(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    stickers, ran = adopt(app, poll=3600.0), list[int]()

    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    async with at_work(app) as worker:
        await until(lambda: worker.feeds["stickers"].dry)
        for n in range(1, 4):
            application.execute("insert into stickers (id, status) values (%s, %s)", [n, "queued"])
            await until(lambda n=n: len(ran) == n)  # type: ignore[misc]  # of the loop


@pytest.mark.slow
async def test_a_row_that_runs_for_long_under_a_living_worker_is_not_run_twice(async_app: Dibs) -> None:
    app, application = Dibs(async_app.url, lease=1.0, beat=0.1), Application(async_app.engine)
    application.execute(TABLE)
    application.execute(FILES)
    stickers = adopt(app, output=("files", "sticker"))
    stickers.adoption = replace(stickers.adoption, stuck_after=0.2)  # less than anybody may say
    began, go = list[int](), asyncio.Event()

    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        began.append(row["id"])
        await go.wait()
        application.execute("insert into files (sticker) values (1)")

    fill(application, 1)
    async with at_work(app) as one, app.running() as other:
        await until(lambda: bool(began))
        for _ in range(20):
            for watch in (*one.watches, *other.watches):
                watch.minded = 0.0
                await watch.run_once(1e9)
            await asyncio.sleep(0.1)  # in all, ten times its time, and two leases
        go.set()
        await until(lambda: statuses(application) == {"completed": 1})
        assert one.stats.refused == other.stats.refused == 0
    assert began == [1]
    assert app.engine.run(rows.trouble(stickers.source(app.engine))).duplicates == []
    await app.aclose()


async def test_a_worker_told_to_stop_hands_rows_back(async_app: Dibs) -> None:
    app, application = Dibs(async_app.url, grace=0.1), Application(async_app.engine)
    application.execute(TABLE)
    stickers, began = adopt(app), list[int]()

    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        began.append(row["id"])
        await asyncio.sleep(600)

    fill(application, 3)
    async with at_work(app, concurrency=2):
        await until(lambda: len(began) == 2)
    assert statuses(application) == {"queued": 3}
    assert application.execute("select max(attempts) from stickers") in ([(0,)], [(None,)])
    await app.aclose()


def test_rows_that_wait_are_counted_with_their_queue(app: Dibs, application: Application, stickers: Adopted) -> None:
    @stickers.process
    def render(row: dict[str, Any]) -> None:
        raise ValueError("broken")

    fill(application, 3)
    (counts,) = app.queues()
    assert (counts.name, counts.waiting, counts.failed) == ("stickers", 3, 0)
    app.drain()
    application.execute("update stickers set status = 'queued' where id = 1")
    (counts,) = app.queues()
    assert (counts.name, counts.waiting, counts.failed) == ("stickers", 1, 3)


async def test_only_the_queues_asked_for(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    stickers, ran = adopt(app), list[Any]()

    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        ran.append(row["id"])

    @app.task(queue="mail")
    async def send() -> None:
        ran.append("mail")

    fill(application, 1)
    await send.aenqueue()
    async with at_work(app, queues={"mail": 2.0}):
        await until(lambda: ran == ["mail"])
    async with at_work(app, queues={"stickers": 1.0, "mail": 1.0}):
        await until(lambda: ran == ["mail", 1])


async def test_a_row_that_is_cancelled_says_so(async_app: Dibs) -> None:
    app, application = async_app, Application(async_app.engine)
    application.execute(TABLE)
    stickers, began = adopt(app), dict[int, int]()

    @stickers.process
    async def render(row: dict[str, Any]) -> None:
        began[row["id"]] = current_job().id
        await asyncio.sleep(600 if row["id"] == 1 else 0)

    fill(application, 1)
    async with at_work(app):
        await until(lambda: bool(began))
        assert await app.acancel(began[1])
        await until(lambda: statuses(application) == {"failed": 1})
        assert (await app.aget(began[1])).state == "CANCELLED"


def test_a_failed_row_can_be_retried_by_a_person(app: Dibs, application: Application, stickers: Adopted) -> None:
    fails = [True]

    @stickers.process
    def render(row: dict[str, Any]) -> None:
        if fails:
            raise ValueError("broken")

    fill(application, 1)
    app.drain()
    (job,) = app.engine.run(jobs.page(Filter())).jobs
    assert job.state == "FAILED"
    fails.clear()
    app.retry(int(job.id))
    app.drain()
    assert statuses(application) == {"completed": 1}
    assert application.execute("select error, attempts from stickers") == [(None, 1)]


def test_a_row_that_the_application_queues_again_is_a_new_job(
    app: Dibs, application: Application, stickers: Adopted
) -> None:
    @stickers.process
    def render(row: dict[str, Any]) -> None:
        raise ValueError("broken")

    fill(application, 1)
    app.drain()
    (old,) = app.engine.run(jobs.page(Filter())).jobs
    application.execute("update stickers set status = 'queued'")
    app.drain()
    new, again = app.engine.run(jobs.page(Filter())).jobs
    assert again.id == old.id
    assert (new.state, new.attempts) == ("FAILED", 3)
    app.retry(int(old.id))
    with pytest.raises(UniqueKeyHeld):
        app.retry(int(new.id))
    report = app.drain()
    assert (report.claimed, statuses(application)) == (3, {"failed": 1})
    assert app.engine.run(jobs.retry_matching(Filter())).done == 1, "of one row only one at a time"


@on_postgres
def test_values_come_in_types_of_python(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute(
        "create table kinds (id uuid primary key, status text, price numeric(12, 2), at timestamptz, ratio float8, "
        "data bytea, more jsonb)"
    )
    application.execute(
        "insert into kinds values ('00000000-0000-0000-0000-000000000007', 'queued', 12345678.90, "
        "'2026-01-02 03:04:05+00', 0.5, '\\x00ff', '{\"a\": 1.5}')"
    )
    kinds, seen = app.adopt("kinds", key="id", status="status", states=WORDS), dict[str, Any]()

    @kinds.process
    def look(row: dict[str, Any]) -> None:
        seen.update(row)

    app.drain()
    assert seen == {
        "id": UUID("00000000-0000-0000-0000-000000000007"),
        "status": "started",
        "price": Decimal("12345678.90"),
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "ratio": 0.5,
        "data": b"\x00\xff",
        "more": {"a": 1.5},
    }


def said(**changes: Any) -> dict[str, Any]:
    return dict(table="stickers", key="id", status="status", states=WORDS) | changes


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(table="a.b.c"), "neither a table's name"),
        (dict(table=""), "must be a text"),
        (dict(table="x\x00y"), "control characters"),
        (dict(key=()), "names no column"),
        (dict(status="id"), "named twice"),
        (dict(states={"PENDING": "a"}), "no word for RUNNING, SUCCESSFUL, FAILED"),
        (dict(states=WORDS | {"FAILED": "queued"}), "PENDING and FAILED have the same word"),
        (dict(states=WORDS | {"PROCESSING": "x"}), "there is no state 'PROCESSING' for a row"),
        (dict(states=WORDS | {"FAILED": 7}), "texts and numbers"),
        (dict(states=WORDS | {"FAILED": None}), "must be a text or a whole number"),
        (dict(states=["queued"]), "must say the word for each state"),
        (dict(where="  "), "must be a condition"),
        (dict(output="files"), "must name a table and the column"),
        (dict(stuck_after=0), "stuck_after"),
        (dict(batch=0), "batch"),
        (dict(poll=0), "poll"),
        (dict(max_attempts=0), "max_attempts"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        Dibs("sqlite:///never.db").adopt(**said(**changes))


@pytest.mark.parametrize("first", [0, 1])
def test_no_task_has_the_queue_of_a_table(first: int) -> None:
    """Whichever is declared first: only rows are run there."""
    app = Dibs("sqlite:///never.db")
    steps = [lambda: app.task(name="mail", queue="stickers")(lambda: None), lambda: app.adopt(**said())]
    steps[first]()
    with pytest.raises(InvalidOption, match=r"queue: 'stickers' is an adopted table.* no job of mail would"):
        steps[1 - first]()
    assert len(app.tasks) + len(app.adopted) == 1


def test_a_table_has_one_name_and_one_function() -> None:
    app = Dibs("sqlite:///never.db")
    stickers = app.adopt(**said())
    with pytest.raises(DuplicateTask):
        app.adopt(**said())
    with pytest.raises(InvalidOption, match="one argument, the row"):
        stickers.process(lambda: None)

    @stickers.process
    def first(row: Any) -> None: ...

    with pytest.raises(ConfigError, match="have a function already"):
        stickers.process(first)


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(table="nothing"), "there is no such table"),
        (dict(key="ID2"), "it has no column 'ID2'. Did you mean 'id'"),
        (dict(key="note"), "neither its primary key nor has it a unique index"),
        (dict(states=dict(PENDING=1, RUNNING=2, SUCCESSFUL=3, FAILED=4)), "the words are numbers"),
        (dict(states=WORDS | {"FAILED": "x" * 21}), "too short for"),
        (dict(table="shown"), "it is a view, whose rows cannot be locked"),
        (dict(output=("nowhere", "x")), "nowhere cannot be adopted: there is no such table"),
        (dict(output=("files", "x")), "files cannot be adopted: it has no column 'x'"),
        (dict(output=("files", ("sticker", "path"))), "as many columns as the key"),
        (dict(where="no such thing ((("), "does not understand"),
        (dict(where="missing = 1"), "does not understand"),
        (dict(table='"; drop table stickers; --'), "there is no such table"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(
    app: Dibs, application: Application, changes: dict[str, Any], words: str
) -> None:
    application.execute("create view shown as select * from stickers")
    adopted = app.adopt(**said(**changes))

    @adopted.process
    def never(row: Any) -> None:
        raise AssertionError

    for start in (app.drain, lambda: plan(adopted, app.engine)):
        with pytest.raises(NotAdoptable, match=words.replace("(", r"\(")):
            start()
    assert statuses(application) == {}


@on_postgres
def test_more_that_does_not_fit(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create type mood as enum ('queued', 'started', 'completed')")
    application.execute(
        "create table moods (id int primary key, status mood); create table loose (id int unique, status text)"
    )
    for table, words in (("moods", "an enum without failed"), ("loose", "its key may be null")):
        adopted = app.adopt(**said(table=table))
        adopted.process(lambda row: None)
        for start in (adopted.source, partial(plan, adopted)):
            with pytest.raises(NotAdoptable, match=words):
                start(app.engine)


@pytest.fixture
def stranger(app: Dibs, application: Application) -> Iterator[Dibs]:
    """Somebody who may do with our tables what they like, and with those of the application what everybody may."""
    role = application.execute("select 'stranger of ' || current_database()")[0][0]  # the server is not ours alone
    application.execute(f'create role "{role}" login; grant usage on schema dibs to "{role}"')
    for kind in ("tables", "sequences", "functions"):
        application.execute(f'grant all on all {kind} in schema dibs to "{role}"')
    parts = urlsplit(app.url)
    stranger = Dibs(urlunsplit(parts._replace(netloc=f"{quote(role)}@{parts.netloc.rpartition('@')[2]}")))
    yield stranger
    stranger.close()
    application.execute(f'drop owned by "{role}"; drop role "{role}"')


WRITTEN = "grant update (status, error) on stickers to public"
READ = "grant select on stickers to public"


@on_postgres
@pytest.mark.parametrize(
    "grants, words",
    [
        ((), "stickers cannot be adopted: .* grant select on it, and update of status, error"),
        ((WRITTEN,), "stickers cannot be adopted: .* grant select on it, and update of status, error"),
        ((READ, "grant update (status) on stickers to public"), "stickers .* grant select .* update"),
        ((READ, WRITTEN), "files cannot be adopted: this user may not read its columns sticker"),
    ],
)
def test_who_may_not_touch_a_table_is_told(
    stranger: Dibs, application: Application, grants: Sequence[str], words: str
) -> None:
    for grant in grants:
        application.execute(grant)
    adopted = stranger.adopt(**said(error="error", output=("files", "sticker")))
    with pytest.raises(NotAdoptable, match=words):
        adopted.source(stranger.engine)


@on_postgres
def test_who_may_write_some_columns_may_work(stranger: Dibs, application: Application) -> None:
    """And who may read only what names the row, of the output."""
    for grant in (READ, WRITTEN, "grant select (sticker) on files to public"):
        application.execute(grant)
    adopted = stranger.adopt(**said(error="error", output=("files", "sticker")))
    adopted.process(lambda row: None)
    fill(application, 7)
    application.execute("insert into files values (3, null)")
    stranger.drain()
    assert statuses(application) == {"completed": 7}
    assert stranger.engine.run(rows.trouble(adopted.source(stranger.engine))) == ([], [], [], 0)
