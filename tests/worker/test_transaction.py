"""A job's own transaction: its effects and its last state commit together, fenced, or not at all."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from dibs import Dibs, Job, JobState, Task, current_job
from dibs.engines.sqlite import transaction as sqlite_transaction
from dibs.engines.sqlite.connection import SqliteConnection
from dibs.errors import ConnectionLost, InvalidPayload, LeaseLost, NoCurrentJob
from dibs.payload import decode
from dibs.worker.run import Runner
from dibs.worker.transaction import JobTransaction
from tests.actors import Actors
from tests.apps import can_write_at_once, on_postgres, on_sqlite
from tests.engines.transactions import django_database
from tests.worker.beats import await_beats

KINDS = ["sync", "async"]
PATIENCE = 30.0


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    app = Dibs(url, lease=4.0, beat=0.1)
    actors = Actors(app.engine)
    actors.sql("create table effects (n integer)")
    yield app
    app.close()


@pytest.fixture
def actors(app: Dibs) -> Actors:
    return Actors(app.engine)


def effects(actors: Actors) -> list[int]:
    return sorted(row[0] for row in actors.sql("select n from effects"))


def writer(app: Dibs, kind: str, **options: Any) -> Task[..., Any]:
    """A task that writes a number, and does as it is told inside and after the transaction."""
    mark = "?" if app.engine.name == "sqlite" else "%s"
    insert = f"insert into effects values ({mark})"

    @app.task(name="sync", **options)
    def sync(n: int, error: str = "", after: str = "") -> str:
        with current_job().transaction() as connection:
            connection.execute(insert, [n])
            current_job().result = {"wrote": n}
            if error:
                raise ValueError(error)
        if after:
            raise ValueError(after)
        return "not this"

    @app.task(name="async", **options)
    async def asynchronous(n: int, error: str = "", after: str = "") -> str:
        async with current_job().transaction() as connection:
            await connection.execute(insert, [n])
            current_job().result = {"wrote": n}
            if error:
                raise ValueError(error)
        if after:
            raise ValueError(after)
        return "not this"

    return sync if kind == "sync" else asynchronous


def drain(app: Dibs, ended: threading.Event) -> None:
    """Once."""
    app.drain()


def work(app: Dibs, ended: threading.Event) -> None:
    """A worker, until then."""
    app.start()
    ended.wait(PATIENCE)
    app.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_effects_and_success_commit_together(app: Dibs, actors: Actors, kind: str) -> None:
    job = writer(app, kind).enqueue(n=1)
    report = app.drain()
    assert (report.successful, effects(actors)) == (1, [1])
    done = job.refresh()
    assert (done.state, done.result) == (JobState.SUCCESSFUL, {"wrote": 1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", ["", "no"])
def test_jobs_that_are_added_in_it_commit_with_it(app: Dibs, actors: Actors, kind: str, error: str) -> None:
    @app.task(name="next", queue="later")
    def following(n: int) -> None: ...

    def first() -> None:
        with current_job().transaction() as connection:
            following.using(connection=connection).enqueue(1)
            app.enqueue_many([following.call(2), following.call(3)], connection=connection)
            if error:
                raise ValueError(error)

    async def first_too() -> None:
        async with current_job().transaction() as connection:
            await following.using(connection=connection).aenqueue(1)
            await app.aenqueue_many([following.call(2), following.call(3)], connection=connection)
            if error:
                raise ValueError(error)

    job = app.task(name="first", max_attempts=1)(first if kind == "sync" else first_too).enqueue()
    app.drain(queues=["default"])
    assert job.refresh().error == (f"ValueError: {error}" if error else None)
    added = actors.sql("select payload from dibs.jobs where type = 'next'")
    assert sorted(decode(row[0])["n"] for row in added) == ([] if error else [1, 2, 3])


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_raises_leaves_nothing(app: Dibs, actors: Actors, kind: str, url: str) -> None:
    job = writer(app, kind, max_attempts=1).enqueue(n=1, error="no")
    report = app.drain()
    assert (report.failed, effects(actors), job.refresh().error) == (1, [], "ValueError: no")
    assert can_write_at_once(url)


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_after_the_commit_changes_nothing(app: Dibs, actors: Actors, kind: str) -> None:
    job = writer(app, kind).enqueue(n=1, after="too late")
    assert app.drain().successful == 1
    assert (job.refresh().state, effects(actors)) == (JobState.SUCCESSFUL, [1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runs", [drain, work])
def test_it_may_go_on_after_the_commit(
    app: Dibs, actors: Actors, kind: str, runs: Callable[[Dibs, threading.Event], Any]
) -> None:
    """For as long as it likes: a beat that does not find its lease any more finds that it has kept its word."""
    ended, told_to_stop = threading.Event(), list[bool]()

    def goes_on() -> None:
        with current_job().transaction() as connection:
            connection.execute("insert into effects values (1)")
        await_beats(app)
        told_to_stop.append(current_job().cancelled)
        ended.set()

    async def goes_on_too() -> None:
        try:
            async with current_job().transaction() as connection:
                await connection.execute("insert into effects values (1)")
            await asyncio.to_thread(await_beats, app)
            told_to_stop.append(current_job().cancelled)
        finally:
            ended.set()

    app.task(name="goes_on")(goes_on if kind == "sync" else goes_on_too).enqueue()
    runs(app, ended)
    assert (told_to_stop, effects(actors)) == ([False], [1])


def test_a_hook_that_was_stopped_after_its_commit_has_done_its_work(
    app: Dibs, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its job has failed, whatever becomes of who waits for it."""
    finish, leave = Runner._finish, JobTransaction.__exit__
    waiting = list[asyncio.Task[Any]]()

    async def finishes(runner: Runner, *args: Any) -> Any:
        waiting.append(asyncio.current_task())  # type: ignore[arg-type]  # there is one
        return await finish(runner, *args)

    def leaves(transaction: JobTransaction, *args: Any) -> None:
        leave(transaction, *args)
        waiting[0].get_loop().call_soon_threadsafe(waiting[0].cancel)

    def refund(job: Job, connection: Any) -> None:
        connection.execute("insert into effects values (1)")

    @app.task(max_attempts=1, on_failure=refund)
    def costly() -> None:
        raise ValueError("no")

    monkeypatch.setattr(Runner, "_finish", finishes)
    monkeypatch.setattr(JobTransaction, "__exit__", leaves)
    job = costly.enqueue()
    report = app.drain()
    assert (report.failed, report.successful, effects(actors)) == (1, 0, [1])
    assert job.refresh().state == JobState.FAILED


@pytest.mark.parametrize("kind", KINDS)
def test_each_attempt_has_one(app: Dibs, actors: Actors, kind: str) -> None:
    def twice() -> None:
        for _ in range(2):
            with current_job().transaction() as connection:
                connection.execute("insert into effects values (7)")

    async def twice_too() -> None:
        for _ in range(2):
            async with current_job().transaction() as connection:
                await connection.execute("insert into effects values (7)")

    task = app.task(name="twice")(twice if kind == "sync" else twice_too)
    job = task.enqueue()
    app.drain()
    assert (job.refresh().state, effects(actors)) == (JobState.SUCCESSFUL, [7])
    with pytest.raises(NoCurrentJob, match="No job runs here"):
        current_job()


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_owner_cannot_write(url: str, actors: Actors, kind: str) -> None:
    """The job is cancelled, by its own code through another connection, before it settles; and before a beat tells."""
    app = Dibs(url, lease=400.0, beat=100.0)
    refused: list[str] = []

    def late() -> None:
        try:
            app.engine.run(_cancel(current_job().id))
            with current_job().transaction() as connection:
                connection.execute("insert into effects values (1)")
        except LeaseLost as error:
            refused.append(str(error))

    async def late_too() -> None:
        try:
            await app.engine.arun(_cancel(current_job().id))
            async with current_job().transaction() as connection:
                await connection.execute("insert into effects values (1)")
        except LeaseLost as error:
            refused.append(str(error))

    job = app.task(name="late")(late if kind == "sync" else late_too).enqueue()
    app.drain()
    assert (effects(actors), job.refresh().state) == ([], JobState.CANCELLED)
    app.close()
    assert refused == [f"Job {job.id} is no longer ours: it was taken over or cancelled. Nothing was written."]


def _cancel(job_id: int) -> Any:
    from dibs.operations import jobs

    return jobs.cancel([job_id])


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_whose_answer_is_lost_counts_once(
    app: Dibs, actors: Actors, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt fails for now; its settle names the same lease, and learns that the job is done."""
    from dibs.engines.postgres.transaction import PostgresAsyncOpen, PostgresOpen
    from dibs.engines.sqlite.transaction import SqliteOpen

    def cut(commit: Any) -> Any:
        def lost(self: Any) -> None:
            commit(self)
            raise ConnectionLost("cut off")

        return lost

    async def lost_too(self: PostgresAsyncOpen) -> None:
        await commit_too(self)
        raise ConnectionLost("cut off")

    commit_too = PostgresAsyncOpen.commit
    monkeypatch.setattr(SqliteOpen, "commit", cut(SqliteOpen.commit))
    monkeypatch.setattr(PostgresOpen, "commit", cut(PostgresOpen.commit))
    monkeypatch.setattr(PostgresAsyncOpen, "commit", lost_too)
    job = writer(app, kind).enqueue(n=1)
    report = app.drain()
    assert (report.successful, report.retried, effects(actors)) == (1, 0, [1])
    assert (job.refresh().state, job.refresh().attempts) == (JobState.SUCCESSFUL, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_commits_by_itself_is_told(app: Dibs, actors: Actors, kind: str) -> None:
    """It would break the fence."""

    def commits() -> None:
        with current_job().transaction() as connection:
            connection.execute("insert into effects values (1)")
            connection.commit()

    async def commits_too() -> None:
        async with current_job().transaction() as connection:
            await connection.execute("insert into effects values (1)")
            await (connection.execute("commit") if app.engine.name == "sqlite" else connection.commit())

    job = app.task(name="commits", max_attempts=1)(commits if kind == "sync" else commits_too).enqueue()
    app.drain()
    assert (effects(actors), job.refresh().state) == ([], JobState.FAILED)


@on_sqlite
@pytest.mark.parametrize("kind", KINDS)
def test_on_sqlite_it_may_not_keep_others_waiting(
    app: Dibs, actors: Actors, kind: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "HOLD_SECONDS", 0.2)
    written = threading.Event()

    def others_write() -> None:
        other = Dibs(url)
        other.engine.run(_cancel(999))
        other.close()
        written.set()

    def slow() -> None:
        with current_job().transaction() as connection:
            connection.execute("insert into effects values (1)")
            threading.Thread(target=others_write).start()
            assert written.wait(30)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                connection.execute("insert into effects values (2)")

    async def slow_too() -> None:
        async with current_job().transaction() as connection:
            await connection.execute("insert into effects values (1)")
            threading.Thread(target=others_write).start()
            assert await asyncio.to_thread(written.wait, 30)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                await connection.execute("insert into effects values (2)")

    job = app.task(name="slow", max_attempts=1)(slow if kind == "sync" else slow_too).enqueue()
    app.drain()
    failed = job.refresh()
    assert (effects(actors), failed.state) == ([], JobState.FAILED)
    assert "TransactionTooLong: The transaction was open for over 0.2 s" in (failed.error or "")


@on_sqlite
async def test_who_is_cancelled_while_it_begins_leaves_no_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite the transaction begins on a thread, which nobody can stop: it is ended right after."""
    app, other = Dibs(url), Dibs(url)
    await asyncio.to_thread(Actors(app.engine).sql, "create table effects (n integer)")
    async with app.engine.atransaction() as opened:
        await opened.connection.execute("insert into effects values (1)")
        waits = threading.Event()
        begins = SqliteConnection.begin
        monkeypatch.setattr(SqliteConnection, "begin", lambda *args: (waits.set(), begins(*args))[1])
        begin = asyncio.create_task(_begun(other))
        assert await asyncio.to_thread(waits.wait, 30)
        begin.cancel()
        await opened.commit()
    with suppress(asyncio.CancelledError):
        await begin
    for _ in range(3):
        async with other.engine.atransaction() as opened:
            await opened.connection.execute("insert into effects values (2)")
            await opened.commit()
    assert await asyncio.to_thread(effects, Actors(app.engine)) == [1, 2, 2, 2]
    await app.aclose()
    await other.aclose()


async def _begun(app: Dibs) -> None:
    async with app.engine.atransaction():
        await asyncio.Event().wait()


@on_postgres
def test_it_is_the_drivers_own_connection(app: Dibs) -> None:
    seen: list[Any] = []

    @app.task
    def which() -> None:
        with current_job().transaction() as connection:
            row = connection.execute("select '{\"a\": 1}'::jsonb, current_setting('jit')").fetchone()
            seen.append((isinstance(connection, psycopg.Connection), row[0]))

    which.enqueue()
    app.drain()
    assert seen == [(True, {"a": 1})]  # JSON as psycopg reads it, not as we do


@pytest.mark.parametrize("kind", KINDS)
def test_connections_are_used_again_and_not_more_than_needed(app: Dibs, actors: Actors, kind: str) -> None:
    task = writer(app, kind)
    app.enqueue_many(task.call(n=n) for n in range(30))
    assert app.drain(concurrency=3).successful == 30
    assert effects(actors) == list(range(30))


# Joining a transaction of one's own


def test_what_cannot_be_joined_is_named(app: Dibs, actors: Actors) -> None:
    @app.task(max_attempts=1)
    def joins() -> None:
        with current_job().transaction("something"):
            pass

    job = joins.enqueue()
    app.drain()
    assert "ForeignConnection: transaction() can join a SQLAlchemy session or Django's connection" in (
        job.refresh().error or ""
    )


def sync_url(url: str) -> str:
    """As SQLAlchemy names it."""
    return url.replace("postgresql://", "postgresql+psycopg://")


def async_url(url: str) -> str:
    """Likewise, for async code."""
    return sync_url(url).replace("sqlite://", "sqlite+aiosqlite://")


@pytest.mark.parametrize("outcome", ["commits", "raises"])
def test_a_sqlalchemy_session_is_joined(app: Dibs, actors: Actors, url: str, outcome: str) -> None:
    import sqlalchemy
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(sync_url(url))

    @app.task(max_attempts=1)
    def joins() -> None:
        with Session(engine) as session, current_job().transaction(session) as same:
            assert same is session
            session.execute(sqlalchemy.text("insert into effects values (5)"))
            current_job().result = "joined"
            if outcome == "raises":
                raise ValueError("no")

    job = joins.enqueue()
    app.drain()
    engine.dispose()
    done = job.refresh()
    if outcome == "commits":
        assert (done.state, done.result, effects(actors)) == (JobState.SUCCESSFUL, "joined", [5])
    else:
        assert (done.state, effects(actors)) == (JobState.FAILED, [])


@pytest.mark.parametrize("trouble", ["lost", "unstorable"])
def test_a_session_whose_job_cannot_be_settled_is_rolled_back(
    app: Dibs, actors: Actors, url: str, trouble: str
) -> None:
    """Whoever catches that and commits the session later commits nothing of it."""
    import sqlalchemy
    from sqlalchemy.orm import Session

    engine, caught = sqlalchemy.create_engine(sync_url(url)), list[str]()

    @app.task(max_attempts=1)
    def joins() -> None:
        with Session(engine) as session:
            try:
                if trouble == "lost":
                    app.engine.run(_cancel(current_job().id))
                with current_job().transaction(session):
                    session.execute(sqlalchemy.text("insert into effects values (5)"))
                    current_job().result = None if trouble == "lost" else object()
            except (LeaseLost, InvalidPayload) as error:
                caught.append(type(error).__name__)
            session.commit()

    joins.enqueue()
    app.drain()
    engine.dispose()
    assert (caught, effects(actors)) == ([{"lost": "LeaseLost", "unstorable": "InvalidPayload"}[trouble]], [])


async def test_an_async_sqlalchemy_session_is_joined(url: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    app, engine = Dibs(url), create_async_engine(async_url(url))
    await asyncio.to_thread(Actors(app.engine).sql, "create table effects (n integer)")

    @app.task
    async def joins() -> None:
        async with AsyncSession(engine) as session, current_job().transaction(session):
            await session.execute(text("insert into effects values (5)"))

    job = await joins.aenqueue()
    assert (await app.adrain()).successful == 1
    assert (await job.arefresh()).state == "SUCCESSFUL"
    assert await asyncio.to_thread(effects, Actors(app.engine)) == [5]
    await engine.dispose()
    await app.aclose()


@pytest.mark.parametrize("trouble", ["lost", "unstorable", "raises"])
async def test_an_async_session_whose_job_cannot_be_settled_is_rolled_back(url: str, trouble: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    app, engine, caught = Dibs(url), create_async_engine(async_url(url)), list[str]()
    await asyncio.to_thread(Actors(app.engine).sql, "create table effects (n integer)")

    @app.task(max_attempts=1)
    async def joins() -> None:
        async with AsyncSession(engine) as session:
            try:
                if trouble == "lost":
                    await app.engine.arun(_cancel(current_job().id))
                async with current_job().transaction(session):
                    await session.execute(text("insert into effects values (5)"))
                    current_job().result = object() if trouble == "unstorable" else None
                    if trouble == "raises":
                        raise ValueError("no")
            except (LeaseLost, InvalidPayload, ValueError) as error:
                caught.append(type(error).__name__)
            await session.commit()

    await joins.aenqueue()
    await app.adrain()
    assert caught == [{"lost": "LeaseLost", "unstorable": "InvalidPayload", "raises": "ValueError"}[trouble]]
    assert await asyncio.to_thread(effects, Actors(app.engine)) == []
    await engine.dispose()
    await app.aclose()


DJANGO = """
import json, sys
from django.conf import settings
settings.configure(DATABASES={"default": json.loads(sys.argv[1])}, USE_TZ=True)
import django
django.setup()
from django.db import connection, transaction
from dibs import Dibs, current_job
from dibs.errors import InvalidPayload, LeaseLost

app = Dibs(sys.argv[2])

def write(n):
    with connection.cursor() as cursor:
        cursor.execute("insert into effects values (%s)", [n])

@app.task(name="joins", max_attempts=1)
def joins(n: int, how: str) -> None:
    try:
        if how == "inside":
            with transaction.atomic(), current_job().transaction(connection):
                write(n)
        if how in ("lost", "unstorable"):
            try:
                if how == "lost":
                    app.cancel(current_job().id)
                with current_job().transaction(connection):
                    write(n)
                    current_job().result = None if how == "lost" else object()
            except (LeaseLost, InvalidPayload):
                assert not connection.in_atomic_block and connection.get_autocommit()
                write(100 + n)
            return
        with current_job().transaction(connection):
            write(n)
            with transaction.atomic():
                write(n)
            current_job().result = "joined"
            if how == "raises":
                raise ValueError("no")
    finally:
        connection.close()

for n, how in enumerate(["commits", "raises", "inside", "lost", "unstorable"]):
    joins.enqueue(n=n, how=how)
app.drain(concurrency=1)
"""


@pytest.mark.slow
def test_djangos_transaction_is_joined(app: Dibs, actors: Actors, url: str) -> None:
    arguments = [json.dumps(django_database(url)), url]
    done = subprocess.run([sys.executable, "-c", DJANGO, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    jobs = [app.get(number) for number in (1, 2, 3)]
    assert [job.state.value for job in jobs] == ["SUCCESSFUL", "FAILED", "FAILED"]
    assert (jobs[0].result, effects(actors)) == ("joined", [0, 0, 103, 104])
    assert jobs[1].error == "ValueError: no"
    assert "A durable atomic block cannot be nested within another atomic block" in str(jobs[2].error)
