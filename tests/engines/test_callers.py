"""A job added inside the caller's own transaction exists when, and only when, that commits."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from dibs import Dibs, Task
from dibs.errors import ForeignConnection, InvalidOption, JobNotFound
from dibs.job import JobState
from tests.apps import POSTGRES, SQLITE, can_write_at_once, count_jobs, on_postgres, on_sqlite
from tests.engines.transactions import (
    ASYNC_CALLERS,
    CALLERS,
    EFFECT,
    AsyncCaller,
    Caller,
    by_async_psycopg,
    by_async_sqlalchemy,
    by_django,
    by_psycopg,
    by_session,
    by_sqlalchemy,
    by_sqlite3,
    count_effects,
    django_database,
    path,
    prepare,
    sa_engine,
)

C = TypeVar("C")
FreshUrl = Callable[[str], str]


@dataclass
class Scene(Generic[C]):
    """An app, and somebody with a transaction of their own on the same database."""

    url: str
    app: Dibs
    mail: Task[..., None]
    caller: C


def declare(app: Dibs) -> Task[..., None]:
    @app.task(name="mail")
    def mail(to: str = "ann") -> None: ...

    return mail


@pytest.fixture(params=CALLERS)
def scene(request: pytest.FixtureRequest, fresh_url: FreshUrl) -> Iterator[Scene[Caller]]:
    place, opened = CALLERS[request.param]
    url = fresh_url(place)
    app = Dibs(url)
    app.migrate()
    prepare(url)
    with opened(url) as caller:
        yield Scene(url, app, declare(app), caller)
    app.close()


@pytest.fixture(params=ASYNC_CALLERS)
async def async_scene(request: pytest.FixtureRequest, fresh_url: FreshUrl) -> AsyncIterator[Scene[AsyncCaller]]:
    place, opened = ASYNC_CALLERS[request.param]
    url = fresh_url(place)
    app = Dibs(url)
    app.migrate()
    prepare(url)
    async with opened(url) as caller:
        yield Scene(url, app, declare(app), caller)
    await app.aclose()


# In sync code


def test_a_job_appears_with_the_commit(scene: Scene[Caller]) -> None:
    scene.caller.execute(EFFECT)
    job = scene.mail.using(connection=scene.caller.connection).enqueue(to="bob")
    with pytest.raises(JobNotFound):
        scene.app.get(job.id)
    scene.caller.commit()
    found = scene.app.get(job.id)
    assert (found.type, found.payload, found.state) == ("mail", {"to": "bob"}, JobState.PENDING)
    assert (found.created_at, found.run_at) == (job.created_at, job.run_at)
    assert count_effects(scene.url) == 1


def test_a_job_goes_with_the_rollback(scene: Scene[Caller]) -> None:
    scene.caller.execute(EFFECT)
    scene.mail.using(connection=scene.caller.connection).enqueue()
    scene.caller.rollback()
    assert (count_jobs(scene.app), count_effects(scene.url)) == (0, 0)
    assert can_write_at_once(scene.url)


def test_many_jobs_appear_with_the_commit(scene: Scene[Caller]) -> None:
    calls = [scene.mail.call(to=str(n)) for n in range(5)] + [scene.mail.using(priority=9).call(to="boss")]
    ids = scene.app.enqueue_many(calls, connection=scene.caller.connection)
    assert count_jobs(scene.app) == 0
    scene.caller.commit()
    assert [scene.app.get(job_id).payload["to"] for job_id in ids] == ["0", "1", "2", "3", "4", "boss"]


def test_many_jobs_go_with_the_rollback(scene: Scene[Caller]) -> None:
    scene.app.enqueue_many([scene.mail.call()] * 3, connection=scene.caller.connection)
    scene.caller.rollback()
    assert count_jobs(scene.app) == 0


def test_a_key_is_taken_with_the_commit(scene: Scene[Caller]) -> None:
    keyed = scene.mail.using(connection=scene.caller.connection, unique_key="k", priority=7, tags=["t"])
    first = keyed.enqueue(to="first")
    second = keyed.enqueue(to="second")
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert (second.payload, second.priority, second.tags) == ({"to": "first"}, 7, ("t",))
    scene.caller.commit()
    assert scene.mail.using(unique_key="k").enqueue().id == first.id
    assert count_jobs(scene.app) == 1


def test_a_key_is_free_after_the_rollback(scene: Scene[Caller]) -> None:
    scene.mail.using(connection=scene.caller.connection, unique_key="k").enqueue()
    scene.caller.rollback()
    assert scene.mail.using(unique_key="k").enqueue().created


def test_the_holder_of_a_key_is_shown_to_the_caller(scene: Scene[Caller]) -> None:
    holder = scene.mail.using(unique_key="k").enqueue(to="holder")
    found = scene.mail.using(connection=scene.caller.connection, unique_key="k").enqueue(to="late")
    assert (found.id, found.created, found.payload) == (holder.id, False, {"to": "holder"})
    assert (found.created_at, found.state) == (holder.created_at, JobState.PENDING)
    scene.caller.rollback()


def test_many_jobs_with_keys_in_the_transaction(scene: Scene[Caller]) -> None:
    holder = scene.mail.using(unique_key="b").enqueue()
    calls = [scene.mail.using(unique_key=key).call() for key in "abca"]
    ids = scene.app.enqueue_many(calls, connection=scene.caller.connection)
    assert (ids[1], ids[3]) == (holder.id, ids[0])
    scene.caller.commit()
    assert count_jobs(scene.app) == 3


@pytest.mark.parametrize("scene", ["psycopg", "sqlite3", "session-sqlite", "session-postgres18"], indirect=True)
def test_sync_connections_serve_async_code_too(scene: Scene[Caller]) -> None:
    async def enqueue() -> int:
        return (await scene.mail.using(connection=scene.caller.connection).aenqueue()).id

    job_id = asyncio.run(enqueue())
    scene.caller.commit()
    assert scene.app.get(job_id).state is JobState.PENDING


# In async code


async def test_an_async_job_appears_with_the_commit(async_scene: Scene[AsyncCaller]) -> None:
    scene = async_scene
    await scene.caller.execute(EFFECT)
    job = await scene.mail.using(connection=scene.caller.connection).aenqueue(to="bob")
    with pytest.raises(JobNotFound):
        await scene.app.aget(job.id)
    await scene.caller.commit()
    assert (await scene.app.aget(job.id)).payload == {"to": "bob"}
    assert count_effects(scene.url) == 1


async def test_an_async_job_goes_with_the_rollback(async_scene: Scene[AsyncCaller]) -> None:
    scene = async_scene
    await scene.caller.execute(EFFECT)
    await scene.mail.using(connection=scene.caller.connection).aenqueue()
    await scene.caller.rollback()
    assert (count_jobs(scene.app), count_effects(scene.url)) == (0, 0)
    assert can_write_at_once(scene.url)


async def test_many_async_jobs_share_the_fate_of_the_transaction(async_scene: Scene[AsyncCaller]) -> None:
    scene = async_scene
    await scene.app.aenqueue_many([scene.mail.call()] * 3, connection=scene.caller.connection)
    await scene.caller.rollback()
    assert count_jobs(scene.app) == 0
    ids = await scene.app.aenqueue_many([scene.mail.call()] * 3, connection=scene.caller.connection)
    await scene.caller.commit()
    assert (len(set(ids)), count_jobs(scene.app)) == (3, 3)


async def test_an_async_key_shares_the_fate_of_the_transaction(async_scene: Scene[AsyncCaller]) -> None:
    scene = async_scene
    keyed = scene.mail.using(connection=scene.caller.connection, unique_key="k")
    await keyed.aenqueue()
    await scene.caller.rollback()
    first = await keyed.aenqueue(to="first")
    second = await keyed.aenqueue(to="second")
    assert (first.created, second.created, second.id, second.payload) == (True, False, first.id, {"to": "first"})
    await scene.caller.commit()
    assert count_jobs(scene.app) == 1


async def test_an_async_connection_is_not_for_sync_code(async_scene: Scene[AsyncCaller]) -> None:
    with pytest.raises(ForeignConnection, match=r"await task\.using"):
        async_scene.mail.using(connection=async_scene.caller.connection).enqueue()


# Wake-ups


@pytest.mark.parametrize("act", ["one", "keyed", "many"])
def test_the_wake_up_comes_with_the_commit(fresh_url: FreshUrl, act: str) -> None:
    url = fresh_url(POSTGRES)
    app = Dibs(url)
    mail = declare(app)
    with closing(psycopg.connect(url, autocommit=True)) as listener, by_psycopg(url) as caller:
        listener.execute("listen dibs_wake")
        match act:
            case "one":
                mail.using(connection=caller.connection).enqueue()
            case "keyed":
                mail.using(connection=caller.connection, unique_key="k").enqueue()
            case "many":
                app.enqueue_many([mail.call()] * 3, connection=caller.connection)
        listener.execute("select 1")  # whatever was sent before would have come by now
        assert list(listener.notifies(timeout=0)) == []
        caller.commit()
        (hint,) = listener.notifies(timeout=10, stop_after=1)
    assert json.loads(hint.payload)["queue"] == "default"
    app.close()


def test_no_wake_up_comes_after_a_rollback(fresh_url: FreshUrl) -> None:
    url = fresh_url(POSTGRES)
    app = Dibs(url)
    mail = declare(app)
    with closing(psycopg.connect(url, autocommit=True)) as listener, by_psycopg(url) as caller:
        listener.execute("listen dibs_wake")
        mail.using(connection=caller.connection, queue="gone").enqueue()
        caller.rollback()
        mail.using(queue="next").enqueue()
        (hint,) = listener.notifies(timeout=10, stop_after=1)
    assert json.loads(hint.payload)["queue"] == "next"
    app.close()


# Without a transaction


@on_sqlite
def test_a_sqlite_connection_that_commits_by_itself_adds_all_or_nothing(
    url: str, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.operations import jobs

    monkeypatch.setattr(jobs, "CHUNK_ROWS", 2)
    app.migrate()
    mail = declare(app)

    def broken() -> Iterator[Any]:
        yield from [mail.call()] * 3
        raise ZeroDivisionError

    with by_sqlite3(url, isolation_level=None) as caller:
        job = mail.using(connection=caller.connection, unique_key="k").enqueue()
        assert not caller.connection.in_transaction
        assert app.get(job.id).state is JobState.PENDING
        with pytest.raises(ZeroDivisionError):
            app.enqueue_many(broken(), connection=caller.connection)
        assert not caller.connection.in_transaction
    assert count_jobs(app) == 1


@on_postgres
def test_a_psycopg_connection_that_commits_by_itself_adds_all_or_nothing(
    url: str, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.operations import jobs

    monkeypatch.setattr(jobs, "CHUNK_ROWS", 2)
    mail = declare(app)

    def broken() -> Iterator[Any]:
        yield from [mail.call()] * 3
        raise ZeroDivisionError

    with by_psycopg(url, autocommit=True) as caller:
        job = mail.using(connection=caller.connection).enqueue()
        assert app.get(job.id).state is JobState.PENDING
        with pytest.raises(ZeroDivisionError):
            app.enqueue_many(broken(), connection=caller.connection)
    assert count_jobs(app) == 1


@on_sqlite
def test_a_file_is_migrated_on_first_use_by_a_callers_connection_too(url: str, app: Dibs) -> None:
    mail = declare(app)
    with by_sqlite3(url) as caller:
        job = mail.using(connection=caller.connection).enqueue()
        caller.commit()
    assert app.get(job.id).state is JobState.PENDING


# Connections that cannot carry a job


def refused(app: Dibs, connection: Any, match: str) -> None:
    with pytest.raises(ForeignConnection, match=match):
        declare(app).using(connection=connection).enqueue()
    assert count_jobs(app) == 0


@on_sqlite
def test_a_connection_to_a_server_cannot_carry_jobs_of_a_file(url: str, app: Dibs, fresh_url: FreshUrl) -> None:
    server = fresh_url(POSTGRES)
    with by_psycopg(server) as psycopg_caller, by_sqlalchemy(server) as sa_caller, by_django(server) as django_caller:
        refused(app, psycopg_caller.connection, "keeps its jobs in sqlite")
        app.tasks.clear()
        refused(app, sa_caller.connection, "keeps its jobs in sqlite")
        app.tasks.clear()
        refused(app, django_caller.connection, "keeps its jobs in sqlite")


@on_postgres
def test_a_connection_to_a_file_cannot_carry_jobs_of_a_server(url: str, app: Dibs, fresh_url: FreshUrl) -> None:
    file = fresh_url(SQLITE)
    with by_sqlite3(file) as sqlite_caller, by_session(file) as sa_caller, by_django(file) as django_caller:
        refused(app, sqlite_caller.connection, "keeps its jobs in postgres")
        app.tasks.clear()
        refused(app, sa_caller.connection, "keeps its jobs in postgres")
        app.tasks.clear()
        refused(app, django_caller.connection, "keeps its jobs in postgres")


@on_sqlite
@pytest.mark.parametrize("opened", [by_sqlite3, by_sqlalchemy, by_session, by_django])
def test_a_connection_to_another_file_is_refused(app: Dibs, fresh_url: FreshUrl, opened: Any) -> None:
    with opened(fresh_url(SQLITE)) as caller:
        refused(app, caller.connection, "cannot span two files")


@on_sqlite
def test_a_connection_to_memory_is_refused(app: Dibs) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        refused(app, connection, "memory")


@on_sqlite
def test_a_file_may_be_known_by_another_name(url: str, app: Dibs, tmp_path: Path) -> None:
    app.migrate()
    link = tmp_path / "link.db"
    link.symlink_to(path(url))
    with by_sqlite3(f"sqlite:///{link}") as caller:
        job = declare(app).using(connection=caller.connection).enqueue()
        caller.commit()
    assert app.get(job.id).state is JobState.PENDING


@on_sqlite
def test_a_connection_of_another_sqlite_library_is_refused(app: Dibs, tmp_path: Path) -> None:
    pysqlite3 = pytest.importorskip("pysqlite3", reason="it has no wheel for this machine")
    with closing(pysqlite3.connect(str(tmp_path / "other.db"))) as connection:  # not our file: its locks would suffer
        refused(app, connection, "Two SQLite libraries in one process")


@on_postgres
def test_a_sqlalchemy_driver_that_speaks_otherwise_is_refused(url: str, app: Dibs) -> None:
    with sa_engine(url) as engine:
        engine.dialect.driver = "asyncpg"
        with engine.connect() as connection:
            refused(app, connection, "'asyncpg' cannot carry them. Use one of: psycopg")


@on_postgres
async def test_an_async_sqlalchemy_driver_that_speaks_otherwise_is_refused(url: str, async_app: Dibs) -> None:
    async with by_async_sqlalchemy(url) as caller:
        caller.connection.sync_engine.dialect.driver = "asyncpg"
        with pytest.raises(ForeignConnection, match="asyncpg"):
            await declare(async_app).using(connection=caller.connection).aenqueue()


@pytest.mark.parametrize("thing", ["postgresql://localhost/shop", 7, object()])
def test_a_thing_that_is_no_connection_is_refused(app: Dibs, thing: Any) -> None:
    refused(app, thing, "Pass one of psycopg, SQLAlchemy, Django or sqlite3")


@on_sqlite
async def test_an_async_connection_of_another_kind_is_refused(async_app: Dibs, fresh_url: FreshUrl) -> None:
    async with by_async_psycopg(fresh_url(POSTGRES)) as caller:
        with pytest.raises(ForeignConnection, match="keeps its jobs in sqlite"):
            await declare(async_app).using(connection=caller.connection).aenqueue()


def test_a_call_cannot_bring_a_connection_along(app: Dibs) -> None:
    """It would be left unused: enqueue_many has one connection for all."""
    with pytest.raises(InvalidOption, match="enqueue_many"):
        declare(app).using(connection=object()).call()


# The caller's transaction stays the caller's


@on_postgres
def test_the_callers_errors_stay_theirs(url: str, app: Dibs) -> None:
    mail = declare(app)
    with by_psycopg(url) as caller:
        with pytest.raises(psycopg.errors.UndefinedTable):
            caller.execute("select * from nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            mail.using(connection=caller.connection).enqueue()


def test_the_callers_connection_is_left_as_it_was(scene: Scene[Caller]) -> None:
    """Its rows still come in its own shape, and its transaction can go on."""
    connection = scene.caller.connection
    before = getattr(connection, "row_factory", None)
    scene.mail.using(connection=connection, unique_key="k").enqueue()
    assert getattr(connection, "row_factory", None) is before
    scene.caller.execute(EFFECT)
    scene.caller.commit()
    assert count_effects(scene.url) == 1


@pytest.mark.parametrize("style", ["connection", "session"])
def test_a_savepoint_of_sqlalchemy_takes_its_job_along(fresh_url: FreshUrl, style: str) -> None:
    url = fresh_url(POSTGRES)
    app = Dibs(url)
    mail = declare(app)
    with sa_engine(url) as engine, engine.connect() if style == "connection" else Session(engine) as it:
        kept = mail.using(connection=it).enqueue()
        with suppress(ZeroDivisionError), it.begin_nested():
            mail.using(connection=it).enqueue()
            raise ZeroDivisionError
        it.commit()
    assert count_jobs(app) == 1
    assert app.get(kept.id).state is JobState.PENDING
    app.close()


DJANGO = """
import json, sys
from django.conf import settings
settings.configure(DATABASES={"default": json.loads(sys.argv[1])}, USE_TZ=True, DEBUG=True)
import django
django.setup()
from django.db import connection, transaction
from dibs import Dibs

app = Dibs(sys.argv[2])
@app.task(name="mail")
def mail(to: str) -> None: ...
in_transaction = mail.using(connection=connection)

with transaction.atomic():
    in_transaction.enqueue(to="kept")
    app.enqueue_many([mail.call(to="kept")], connection=connection)
    try:
        with transaction.atomic():
            in_transaction.enqueue(to="lost with the savepoint")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    in_transaction.using(unique_key="k").enqueue(to="kept")
    assert not in_transaction.using(unique_key="k").enqueue(to="twice").created
try:
    with transaction.atomic():
        in_transaction.enqueue(to="lost")
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
in_transaction.enqueue(to="kept, outside of a transaction")
"""


@pytest.mark.slow
def test_a_django_program(url: str, app: Dibs) -> None:
    """With DEBUG, where Django puts another cursor around its cursor."""
    app.migrate()
    arguments = [json.dumps(django_database(url)), url]
    done = subprocess.run([sys.executable, "-W", "error", "-c", DJANGO, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [app.get(n).payload["to"][:4] for n in range(1, 10) if exists(app, n)] == ["kept"] * 4


def exists(app: Dibs, job_id: int) -> bool:
    try:
        return bool(app.get(job_id))
    except JobNotFound:
        return False


def test_what_sqlalchemy_calls_these_drivers(fresh_url: FreshUrl) -> None:
    """The names by which we know them."""
    with sa_engine(fresh_url(SQLITE)) as file, sa_engine(fresh_url(POSTGRES)) as server:
        assert (file.dialect.driver, server.dialect.driver) == ("pysqlite", "psycopg")
    assert sa.make_url("postgresql+asyncpg://").get_dialect().driver == "asyncpg"
