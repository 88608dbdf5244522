"""The documented role can enqueue, and nothing else. Its grants are read from the page that documents them."""

import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dibs import Dibs, Task
from dibs.engines.postgres.dialect import COPY_FROM
from dibs.engines.postgres.engine import PostgresEngine
from dibs.errors import AccessDenied
from dibs.job import JobId, Lease
from dibs.lifecycle import Back, Way
from dibs.operations import claims, jobs, queues, retention, workers
from dibs.operations.claims import Settle, Want
from dibs.operations.jobs import Filter
from dibs.operations.operation import Operation
from dibs.payload import encode
from tests.actors import Actors
from tests.engines import POSTGRES, Engines, params

PAGE = Path(__file__).parent.parent / "docs/operations/enqueue-only-role.md"
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = "dibs_enqueue"
RELATIONS = "select relname from pg_class where relnamespace = 'dibs'::regnamespace and relkind in ('r', 'p', 'v', 'S')"
READABLE = {"migrations", "unique_keys"}  # every other table is closed, as a whole or but for some columns


@pytest.fixture(params=params(*POSTGRES))
def owner(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Actors]:
    """Those who own a database."""
    with engines.open(request.param) as engine:
        yield Actors(engine)


@pytest.fixture
def url(owner: Actors) -> Iterator[str]:
    """The address of that database for the role. (A role belongs to its server, so each test has one of its own.)"""
    assert isinstance(owner.engine, PostgresEngine)
    (block,) = BLOCK.findall(PAGE.read_text())
    role = f"{NAME}_{secrets.token_hex(5)}"
    with psycopg.connect(owner.engine.server.url) as connection:
        connection.execute(block.replace(NAME, role).encode())
    yield f"{owner.engine.server.url}?options=-c%20role%3D{role}"
    with psycopg.connect(owner.engine.server.url) as connection:
        connection.execute(f"drop owned by {role}".encode())
        connection.execute(f"drop role {role}".encode())


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    """An app that knows only that address."""
    app = Dibs(url)
    yield app
    app.close()


@pytest.fixture
def render(app: Dibs) -> Task[Any, Any]:
    """A task of it."""

    @app.task(name="render")
    def render(sticker: int) -> None: ...

    return render


def test_it_adds_a_job(owner: Actors, render: Task[Any, Any]) -> None:
    job = render.using(priority=9, delay=60, tags=["a"], queue="q").enqueue(sticker=1)
    assert job.created_at
    assert owner.get(job.id) == job


async def test_it_adds_a_job_from_async_code(owner: Actors, app: Dibs, render: Task[Any, Any]) -> None:
    job = await render.aenqueue(sticker=1)
    await app.aclose()
    assert owner.get(job.id).payload == {"sticker": 1}


def test_it_adds_a_job_with_a_key(owner: Actors, render: Task[Any, Any]) -> None:
    job = render.using(unique_key="s1", unique_for=60).enqueue(sticker=1)
    assert (job.created, owner.get(job.id).unique_key) == (True, "s1")


def test_it_adds_many(owner: Actors, app: Dibs, render: Task[Any, Any]) -> None:
    keyed = [render.using(unique_key=f"s{n}").call(sticker=n) for n in range(3)]
    ids = app.enqueue_many([*[render.call(sticker=n) for n in range(3)], *keyed])
    assert [owner.get(job_id).payload["sticker"] for job_id in ids] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("options", [{}, {"delay": 60}, {"run_at": datetime(2040, 1, 1, tzinfo=UTC)}], ids=str)
def test_it_adds_so_many_that_they_are_copied(
    owner: Actors, app: Dibs, render: Task[Any, Any], options: dict[str, Any]
) -> None:
    ids = app.enqueue_many(render.using(**options).call(sticker=n) for n in range(COPY_FROM))
    assert owner.get(ids[-1]).payload == {"sticker": COPY_FROM - 1}


def test_it_adds_a_job_in_its_own_transaction(owner: Actors, url: str, render: Task[Any, Any]) -> None:
    with psycopg.connect(url) as connection:
        job = render.using(connection=connection).enqueue(sticker=1)
    assert owner.get(job.id).payload == {"sticker": 1}


def test_it_learns_who_holds_a_key(owner: Actors, app: Dibs, render: Task[Any, Any]) -> None:
    keyed = render.using(unique_key="s1")
    job = keyed.enqueue(sticker=1)
    assert app.enqueue_many([keyed.call(sticker=2)]) == [job.id]
    with pytest.raises(AccessDenied):
        keyed.enqueue(sticker=3)
    assert owner.sql("select count(*) from dibs.jobs") == [(1,)]


def test_it_takes_a_key_whose_period_is_over(owner: Actors, render: Task[Any, Any]) -> None:
    first = render.using(unique_key="s1", unique_for=3600).enqueue(sticker=1)
    worker = owner.worker()
    worker.succeed(*worker.claim())
    owner.sql("update dibs.unique_keys set until = clock_timestamp()")
    second = render.using(unique_key="s1").enqueue(sticker=1)
    assert second.created
    assert second.id != first.id


LEASE = Lease(JobId(1), 1)
FORBIDDEN: dict[str, Operation[Any]] = {
    "get": jobs.get(1),
    "page": jobs.page(Filter()),
    "cancel": jobs.cancel([1]),
    "cancel matching": jobs.cancel_matching(Filter()),
    "retry": jobs.retry(1),
    "retry matching": jobs.retry_matching(Filter()),
    "progress": jobs.progress(LEASE, encode(1)),
    "claim": claims.turn(Want(1, 1, 1, [("default", 4, None, 0)])),
    "settle": claims.settle([Settle(LEASE, Back(Way.RELEASE))]),
    "next due": claims.next_due(["default"]),
    "available": claims.available(["default"], 1),
    "enlist": workers.enlist(1, "me", lease=15, beat=3),
    "beat": workers.beat([], [], steady=True),
    "hand back": workers.hand_back([], [], []),
    "recover": workers.recover(),
    "recover orphans": workers.recover_orphans(),
    "silent": workers.silent(2),
    "leave": workers.leave([]),
    "workers": workers.list_workers(),
    "queues": queues.names(),
    "counts": queues.counts("dibs"),
    "pause": queues.pause("default"),
    "resume": queues.resume("default"),
    "expired history": retention.expired_history(),
    "forget history": retention.forget_history([1]),
    "expired dead": retention.expired_dead(),
    "forget dead": retention.forget_dead([1]),
}


@pytest.mark.parametrize("operation", FORBIDDEN.values(), ids=FORBIDDEN.keys())
@pytest.mark.parametrize("owner", ["postgres18"], indirect=True)
def test_it_can_do_nothing_else(app: Dibs, render: Task[Any, Any], operation: Operation[Any]) -> None:
    render.enqueue(sticker=1)
    with pytest.raises(AccessDenied):
        app.engine.run(operation)


def test_it_can_read_no_other_table(owner: Actors, url: str) -> None:
    closed = {name for (name,) in owner.sql(RELATIONS)} - READABLE
    assert {"jobs", "dead", "history", "history_rest", "all_jobs", "workers", "queues", "token"} <= closed
    assert {name for name in closed if allowed(url, f"select * from dibs.{name}")} == set()


@pytest.mark.parametrize(
    "statement",
    [
        "select payload from dibs.jobs",
        "select token from dibs.jobs",
        "select failures from dibs.jobs",
        "insert into dibs.jobs (type, held, worker, token) values ('render', true, 1, 1)",
        "insert into dibs.jobs (type) values ('render') returning payload",
        "update dibs.jobs set payload = null",
        "delete from dibs.jobs",
        "update dibs.unique_keys set job = 1",
        "insert into dibs.history select * from dibs.history",
        "select nextval('dibs.token')",
        "select setval('dibs.job_id', 1)",
        "truncate dibs.unique_keys",
        "create table dibs.mine ()",
    ],
)
@pytest.mark.parametrize("owner", ["postgres18"], indirect=True)
def test_it_can_say_nothing_else(owner: Actors, url: str, statement: str) -> None:
    owner.add()
    assert not allowed(url, statement)


def allowed(url: str, statement: str) -> bool:
    """Whether the role may say this."""
    with psycopg.connect(url) as connection:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True
