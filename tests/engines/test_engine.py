"""What is tried again and what is not, and that every wait has an end: restarts, hung servers, poolers."""

import asyncio
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from dibs import Dibs, JobState, Task
from dibs.engines.dialect import Step
from dibs.engines.engine import FIRST_PAUSE, LONGEST_PAUSE, Engine, Patience
from dibs.engines.postgres.connection import Server as Address
from dibs.engines.postgres.engine import PostgresEngine
from dibs.errors import (
    AccessDenied,
    Conflict,
    ConnectionLost,
    DatabaseError,
    DatabaseLocked,
    DeadlineExceeded,
    NotMigrated,
    OutcomeUnknown,
    Refused,
    Unreachable,
)
from dibs.job import NewJob
from dibs.operations import batches, claims, jobs, workers
from dibs.operations.operation import Conversation, Operation, Statement
from tests.apps import POSTGRES, count_jobs, on_postgres
from tests.servers.fixtures import FreshDatabase, OwnServer
from tests.servers.proxy import Proxy

ONE = jobs.add(NewJob("task"))
KEYED = jobs.add_keyed([NewJob("task", unique_key="k")])
MANY = jobs.add_many([NewJob("task")])
READ = jobs.get(1)
TURN = claims.settle([])

FreshUrl = Callable[[str], str]


def declare(app: Dibs) -> Task[..., None]:
    return app.task(name="note")(lambda: None)


# Patience


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("operation", [ONE, KEYED, MANY, READ, TURN], ids=lambda operation: operation.name)
@pytest.mark.parametrize(
    "error", [Conflict("deadlock"), Unreachable("no route")], ids=lambda error: type(error).__name__
)
def test_what_was_not_done_is_tried_again(operation: Operation[Any], error: DatabaseError) -> None:
    assert Patience(operation, 30.0).pause(error) > 0


@pytest.mark.parametrize(
    "operation, again",
    [(ONE, False), (MANY, False), (KEYED, True), (READ, True), (TURN, True)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_may_have_been_done_is_tried_again_only_if_that_does_no_harm(
    operation: Operation[Any], again: bool
) -> None:
    lost = ConnectionLost("cut off")
    if again:
        assert Patience(operation, 30.0).pause(lost) > 0
    else:
        with pytest.raises(OutcomeUnknown, match=r"may or may not be there\. With a unique_key it is safe") as caught:
            Patience(operation, 30.0).pause(lost)
        assert caught.value.__cause__ is lost
        assert operation.name in str(caught.value)


@pytest.mark.parametrize(
    "operation",
    [
        jobs.cancel([1]),
        jobs.retry(1),
        jobs.cancel_matching(jobs.Filter()),
        jobs.retry_matching(jobs.Filter()),
        batches.cancel_some(1),
        batches.retry_some(1),
    ],
    ids=lambda operation: operation.name,
)
def test_what_a_person_did_is_not_done_twice(operation: Operation[Any]) -> None:
    """Done again it would find its own work, and say that there was nothing to do; or retry what has failed since."""
    with pytest.raises(OutcomeUnknown, match="It may or may not have been done: look before you do it again"):
        Patience(operation, 30.0).pause(ConnectionLost("cut off"))
    assert Patience(operation, 30.0).pause(Conflict("deadlock")) > 0


@pytest.mark.parametrize(
    "error", [Refused("no"), AccessDenied("no"), DatabaseLocked("no"), NotMigrated("no"), DatabaseError("no")]
)
def test_what_will_not_change_is_told_at_once(error: DatabaseError) -> None:
    with pytest.raises(type(error)) as caught:
        Patience(KEYED, 30.0).pause(error)
    assert caught.value is error


def test_a_server_that_was_never_seen_is_told_at_once() -> None:
    with pytest.raises(Unreachable):
        Patience(KEYED, 30.0, reached=False).pause(Unreachable("no route"))


def test_pauses_grow_and_end_before_the_deadline() -> None:
    clock, pauses = Clock(), []
    patience = Patience(KEYED, 30.0, clock=clock)
    error = Conflict("for now")
    with pytest.raises(DeadlineExceeded, match="Gave up after 30 s: for now") as caught:  # noqa: PT012
        while True:
            pauses.append(patience.pause(error))
            clock.now += pauses[-1]
    assert caught.value.__cause__ is error
    assert clock.now <= 30.0
    assert 0.3 * FIRST_PAUSE <= pauses[0] <= FIRST_PAUSE
    assert max(pauses) <= LONGEST_PAUSE
    assert pauses[-1] >= 0.3 * LONGEST_PAUSE


class Flaky(PostgresEngine):
    """An engine whose first tries fail."""

    def __init__(self, *errors: DatabaseError) -> None:
        super().__init__("postgresql://nobody.invalid/x", deadline=5.0)
        self.errors, self.reached = list(errors), True

    def run_once(self, operation: Operation[Any], *, within: float | None = None) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def arun_once(self, operation: Operation[Any]) -> Any:
        return self.run_once(operation)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_engine_tries_again(kind: str) -> None:
    def carry(engine: Engine, operation: Operation[Any]) -> Any:
        return asyncio.run(engine.arun(operation)) if kind == "async" else engine.run(operation)

    assert carry(Flaky(Conflict("1"), ConnectionLost("2"), Unreachable("3")), KEYED) == "done"
    engine = Flaky(Conflict("1"), ConnectionLost("2"))
    with pytest.raises(OutcomeUnknown):
        carry(engine, ONE)
    with pytest.raises(Refused):
        carry(Flaky(Refused("no")), KEYED)


# A server that goes away and comes back


@pytest.fixture
def server_url(own_postgres: OwnServer) -> tuple[Any, str]:
    server = own_postgres(POSTGRES)
    Dibs(server.url()).migrate()
    return server, server.url()


@pytest.mark.slow
def test_a_restart_between_two_operations_is_survived(server_url: tuple[Any, str]) -> None:
    """The connections of before are noticed to be dead before a job is given to them."""
    server, url = server_url
    app = Dibs(url)
    task = declare(app)

    async def later() -> None:
        await task.aenqueue()
        server.restart()
        task.enqueue()
        await task.aenqueue()
        assert (await app.aget(1)).state is JobState.PENDING
        server.restart("immediate")
        await task.aenqueue()
        task.enqueue()
        await app.aclose()

    task.enqueue()
    asyncio.run(later())
    assert count_jobs(app) == 6
    app.close()


@pytest.mark.slow
def test_a_server_that_is_away_is_waited_for(server_url: tuple[Any, str]) -> None:
    server, url = server_url
    app, short = Dibs(url), Dibs(url, deadline=0.5)
    task = declare(app)
    task.enqueue()
    assert short.get(1).state is JobState.PENDING
    server.stop()
    with pytest.raises(DeadlineExceeded, match=r"Gave up after 0\.5 s: .*Is it running") as caught:
        short.get(1)
    assert isinstance(caught.value.__cause__, Unreachable)
    with ThreadPoolExecutor(2) as threads:
        adding, draining = threads.submit(task.enqueue), threads.submit(app.drain)
        server.start()
        assert adding.result(60).created
        assert draining.result(60).claimed >= 1
    app.close()
    short.close()


# A server that does not answer


@pytest.fixture
def proxy(fresh_url: FreshUrl) -> Iterator[Proxy]:
    with Proxy.before(fresh_url(POSTGRES)) as proxy:
        yield proxy


def ends_in_time(act: Callable[[], Any], error: type[DatabaseError], limit: float = 10.0) -> DatabaseError:
    began = time.monotonic()
    with pytest.raises(error) as caught:
        act()
    assert time.monotonic() - began < limit
    return caught.value


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up_on(proxy: Proxy) -> None:
    app = Dibs(proxy.url, deadline=0.5)
    task = declare(app)
    keyed = task.using(unique_key="k")
    task.enqueue()
    proxy.hang()
    assert "no answer within 0.5 s" in str(ends_in_time(task.enqueue, OutcomeUnknown))
    ends_in_time(keyed.enqueue, DeadlineExceeded)
    ends_in_time(lambda: app.get(1), DeadlineExceeded)
    proxy.go_on()
    assert keyed.enqueue().unique_key == "k"
    app.close()


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up_on_in_async_code(proxy: Proxy) -> None:
    app = Dibs(proxy.url, deadline=0.5)
    task = declare(app)

    async def later() -> None:
        await task.aenqueue()
        proxy.hang()
        with pytest.raises(OutcomeUnknown):
            await task.aenqueue()
        with pytest.raises(DeadlineExceeded):
            await app.aget(1)
        proxy.go_on()
        assert (await app.aget(1)).state is JobState.PENDING
        await app.aclose()

    asyncio.run(asyncio.wait_for(later(), 30))


@pytest.mark.slow
def test_a_server_that_accepts_and_says_nothing(proxy: Proxy) -> None:
    proxy.hang()
    app = Dibs(proxy.url, deadline=0.5)
    ends_in_time(lambda: app.get(1), Unreachable)


@pytest.mark.slow
def test_a_beat_waits_no_longer_than_it_is_told(proxy: Proxy) -> None:
    app = Dibs(proxy.url)
    app.engine.run(workers.list_workers())
    proxy.hang()
    beat = workers.beat([], [], steady=True)
    ends_in_time(lambda: app.engine.run_once(beat, within=0.3), ConnectionLost)
    ends_in_time(lambda: app.engine.run_once(beat, within=0.3), Unreachable, limit=5.0)  # to connect counts as well
    proxy.go_on()
    app.close()


# Statements that were given up on


def said(engine: Engine, text: str, *, atomic: bool = False) -> Operation[Any]:
    """A statement of our own making."""
    engine.dialect.steps["said"] = [Step(text)]

    def conversation() -> Conversation[Any]:
        return (yield Statement("said"))

    return Operation(conversation, "said", repeatable=False, atomic=atomic, reads=False)


def states_of(server: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """What the sessions on this database do, and what they wait for."""
    return server.execute(
        "select state, coalesce(wait_event_type, '') from pg_stat_activity"
        " where datname = current_database() and application_name = 'dibs'"
    ).fetchall()


@on_postgres
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("atomic", [False, True])
def test_the_server_is_told_to_stop_what_was_given_up_on(url: str, app: Dibs, kind: str, atomic: bool) -> None:
    """And has, before we are told; so nothing was written, and we know."""
    app.engine.deadline = 0.3
    operation = said(app.engine, "select pg_sleep(60)", atomic=atomic)

    async def later() -> None:
        try:
            await app.engine.arun_once(operation)
        finally:
            await app.aclose()

    with pytest.raises(Conflict, match=r"no answer within 0\.3 s.* Nothing was written"):
        asyncio.run(later()) if kind == "async" else app.engine.run_once(operation)
    with psycopg.connect(url, autocommit=True) as server:
        assert {state for state, _ in states_of(server)} <= {"idle"}


@on_postgres
def test_a_session_goes_on_after_what_was_given_up_on(app: Dibs) -> None:
    app.engine.deadline = 0.3
    first = app.engine.run_once(said(app.engine, "select pg_backend_pid()"))
    with pytest.raises(Conflict):
        app.engine.run_once(said(app.engine, "select pg_sleep(60)"))
    assert app.engine.run_once(said(app.engine, "select pg_backend_pid()")) == first


def test_what_waits_for_a_lock_behind_a_dead_network_gives_up_by_itself(proxy: Proxy) -> None:
    """Nobody can tell the server; else it would write what was given up on as soon as the lock goes."""
    app = Dibs(proxy.url, deadline=1.0)
    task = declare(app)
    task.enqueue()
    with ExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(proxy.direct))
        looker = stack.enter_context(psycopg.connect(proxy.direct, autocommit=True))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        holder.execute("lock table dibs.jobs in access exclusive mode")
        adding = pool.submit(task.enqueue)
        while ("active", "Lock") not in states_of(looker):
            pass
        proxy.hang()
        with pytest.raises(OutcomeUnknown):
            adding.result(30)
        while ("active", "Lock") in states_of(looker):
            pass
        holder.rollback()
    proxy.go_on()
    assert count_jobs(app) == 1
    app.close()


@on_postgres
def test_a_limit_that_somebody_has_set_for_locks_is_left_alone(url: str) -> None:
    for option, limit in (("", "30s"), ("?options=-c%20lock_timeout%3D77", "77ms")):
        with closing(Dibs(url + option)) as app:
            assert isinstance(app.engine, PostgresEngine)
            with closing(app.engine.connect()) as raw:
                assert raw.execute("show lock_timeout").fetchone() == (limit,)


def test_a_job_whose_answer_was_lost_is_there_and_the_caller_is_told(proxy: Proxy) -> None:
    app = Dibs(proxy.url)
    task = declare(app)
    task.enqueue()  # and so the statement is prepared, and the next answer is that of the commit
    proxy.lose_answer()
    with pytest.raises(OutcomeUnknown, match="'add'"):
        task.enqueue()
    assert count_jobs(app) == 2
    app.close()


def test_a_keyed_job_whose_answer_was_lost_is_there_once(proxy: Proxy) -> None:
    app = Dibs(proxy.url)
    task = declare(app)
    app.engine.run(jobs.page(jobs.Filter()))
    proxy.lose_answer()
    job = task.using(unique_key="k").enqueue()
    assert (count_jobs(app), app.get(job.id).unique_key) == (1, "k")
    app.close()


def test_many_jobs_whose_answer_was_lost_are_not_added_twice(proxy: Proxy) -> None:
    app = Dibs(proxy.url)
    task = declare(app)
    app.engine.run(jobs.page(jobs.Filter()))
    proxy.lose_answer()
    with pytest.raises(OutcomeUnknown):
        app.enqueue_many([task.call()] * 3)
    assert count_jobs(app) in (0, 3)
    app.close()


@on_postgres
def test_a_session_that_the_server_ended_is_replaced(url: str, app: Dibs) -> None:
    task = declare(app)
    task.enqueue()
    with psycopg.connect(url, autocommit=True) as operator:
        ended = operator.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchall()
    assert ended == [(True,)]
    assert task.enqueue().created
    assert count_jobs(app) == 2


@on_postgres
def test_a_process_with_many_open_files(url: str, app: Dibs) -> None:
    task = declare(app)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with ExitStack() as files:
            for _ in range(1100):
                files.callback(os.close, os.dup(0))
            for _ in range(2):
                assert task.enqueue().created
    finally:
        app.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Poolers, and what a URL may say


def prepared_statements(app: Dibs) -> int:
    engine = app.engine
    assert isinstance(engine, PostgresEngine)
    with engine.connection() as raw:
        row = raw.execute("select count(*) from pg_prepared_statements", prepare=False).fetchone()
    return int(row[0]) if row else 0


@on_postgres
def test_without_a_pooler(app: Dibs) -> None:
    declare(app).enqueue()
    assert isinstance(app.engine, PostgresEngine)
    assert (app.engine.pooled, app.engine.can.push_wakeups, app.engine.can.prepared) == (False, True, True)
    assert prepared_statements(app) > 0


@pytest.mark.system("pgbouncer")
def test_a_pooler_is_noticed(pgbouncer_url: FreshDatabase, engines: Any) -> None:
    app = Dibs(pgbouncer_url(POSTGRES, template=engines.template(POSTGRES)))
    task = declare(app)
    assert isinstance(app.engine, PostgresEngine)
    assert app.engine.pooled is None
    for _ in range(3):
        task.enqueue()
    assert app.engine.pooled is True
    assert (app.engine.can.push_wakeups, app.engine.can.prepared) == (False, False)
    assert app.drain().successful == 3
    app.close()


@pytest.mark.system("pgbouncer")
def test_a_pooler_is_noticed_in_async_code(pgbouncer_url: FreshDatabase, engines: Any) -> None:
    app = Dibs(pgbouncer_url(POSTGRES, template=engines.template(POSTGRES)))
    task = declare(app)

    async def later() -> None:
        await asyncio.gather(*(task.aenqueue() for _ in range(5)))
        await app.aclose()

    asyncio.run(later())
    assert isinstance(app.engine, PostgresEngine)
    assert (app.engine.pooled, count_jobs(app)) == (True, 5)
    app.close()


@on_postgres
@pytest.mark.parametrize("option", ["?pooled=true", "?connect_timeout=9&pooled=true&keepalives=1"])
def test_a_pooler_can_be_named(url: str, option: str) -> None:
    app = Dibs(url + option)
    assert isinstance(app.engine, PostgresEngine)
    assert (app.engine.pooled, app.engine.can.push_wakeups) == (True, False)
    declare(app).enqueue()
    assert app.engine.pooled is True
    assert prepared_statements(app) == 0
    app.close()


@pytest.mark.system("pgbouncer")
def test_a_pooler_can_be_denied(url_behind: str) -> None:
    """Whoever says so must know: a pooler in session mode looks the same."""
    app = Dibs(url_behind + "?pooled=false")
    assert isinstance(app.engine, PostgresEngine)
    assert app.engine.pooled is False


@pytest.fixture
def url_behind(pgbouncer_url: FreshDatabase) -> str:
    return pgbouncer_url(POSTGRES)


def test_a_way_past_the_pooler_brings_wake_ups_back() -> None:
    app = Dibs("postgresql://bouncer.invalid/x?pooled=true", listen_url="postgresql://server.invalid/x")
    assert app.engine.can.push_wakeups


@on_postgres
def test_the_rest_of_a_url_is_libpqs(url: str) -> None:
    app = Dibs(url + "?options=-c%20statement_timeout%3D12345&application_name=my%20shop%2B&pooled=false")
    assert isinstance(app.engine, PostgresEngine)
    with closing(app.engine.connect()) as raw:
        shown = [raw.execute(f"show {name}").fetchone() for name in ("statement_timeout", "application_name")]
    assert shown == [("12345ms",), ("my shop+",)]


@on_postgres
def test_a_url_with_several_hosts(url: str) -> None:
    several = url.replace("@127.0.0.1", "@127.0.0.1:1,127.0.0.1")
    app = Dibs(several)
    assert declare(app).enqueue().created
    app.close()


@pytest.mark.parametrize(
    "url, where",
    [
        ("postgresql://ann:secret@db.example:5433/shop", "db.example:5433/shop"),
        ("postgresql://ann:p%40ss@db.example/shop?sslmode=require", "db.example/shop"),
        ("postgresql:///shop?host=/var/run/postgresql", "/var/run/postgresql/shop"),
        ("postgresql:///shop", "the local server/shop"),
        ("postgresql://a,b:5433/shop", "a,b:5433/shop"),
    ],
)
def test_people_are_shown_where_without_the_password(url: str, where: str) -> None:
    assert Address.parse(url).where == where


# Many at once


def test_threads_share_an_engine(app: Dibs) -> None:
    task = declare(app)
    start = threading.Barrier(8)

    def add() -> None:
        start.wait()
        for _ in range(5):
            task.enqueue()

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(add) for _ in range(8)]:
            future.result(60)
    assert count_jobs(app) == 40


async def test_coroutines_share_an_engine(async_app: Dibs) -> None:
    task = declare(async_app)
    await asyncio.gather(*(task.aenqueue() for _ in range(40)))
    assert count_jobs(async_app) == 40


async def test_a_cancelled_caller_leaves_a_sound_engine(async_app: Dibs) -> None:
    task = declare(async_app)
    await task.aenqueue()
    adding = [asyncio.create_task(task.aenqueue()) for _ in range(10)]
    await asyncio.sleep(0)
    for each in adding:
        each.cancel()
    await asyncio.gather(*adding, return_exceptions=True)
    job = await task.aenqueue()
    assert (await async_app.aget(job.id)).state is JobState.PENDING


@on_postgres
async def test_a_connection_that_is_in_use_while_the_others_are_closed_is_closed_after_it(async_app: Dibs) -> None:
    engine = async_app.engine
    assert isinstance(engine, PostgresEngine)
    async with engine.aconnection() as used, engine.atransaction() as opened:
        await engine.aclose()
    assert (used.closed, opened.connection.closed) == (True, True)
