"""What a turn reads stays the same, however many dead rows there are and whenever the table was analyzed.

The judge is the number of pages that PostgreSQL read, not the time it took.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest

from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.job import LEVELS, JobState
from dibs.ladder import START
from dibs.lifecycle import Back, Change, Done, Way
from dibs.operations import claims, workers
from dibs.operations.claims import Settle, Want
from dibs.operations.operation import Operation
from tests.actors import Actors, Worker
from tests.scenarios.crew import Crew, until
from tests.scenarios.places import Places, long

JOBS = 20_000
BATCH = 10
TURNS = 5  # the first makes plans, and another may when autovacuum comes by: for that it reads the catalogue
PAGES = 350  # that a turn of ten may read: twenty ranges, two index pages and more each, and the pages of its jobs
ALL_PAGES = 600  # that the table has at least: a turn that reads it all cannot be missed

UPDATES = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'dibs.jobs'::regclass"
SUCCESS, RETRY = Done(JobState.SUCCESSFUL), Back(Way.RETRY)
OUTCOMES: dict[str, Callable[[int], Change]] = {
    "successful": lambda n: SUCCESS,
    "retried": lambda n: RETRY,
    "mixed": lambda n: (SUCCESS, RETRY)[n % 2],
}
on_servers = pytest.mark.parametrize("kind", ["postgres18", "postgres16", *long("postgres-system")])


def scene(kind: str, places: Places) -> tuple[PostgresEngine, Actors, Worker]:
    """A fresh database, those who use it, and one who claims."""
    _, engine = places.fresh(kind)
    assert isinstance(engine, PostgresEngine)
    actors = Actors(engine)
    return engine, actors, actors.worker()


@contextmanager
def snapshot(engine: PostgresEngine) -> Iterator[None]:
    """Somebody looks at the database all the while, so that no dead row may be forgotten."""
    with psycopg.connect(engine.server.url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from dibs.jobs")
        yield


def plan_of(raw: Any, engine: Engine, operation: Operation[Any]) -> dict[str, Any]:
    """Carry an operation of one statement; how it was carried out."""
    statement = next(iter(operation))
    (step,) = [step for step in engine.dialect.steps[statement.name] if not step.when or statement.values[step.when]]
    values = engine.dialect.encode(statement.values, step.uses)
    cursor = raw.execute(f"explain (analyze, buffers, format json) {step.sql}", values, prepare=False)
    plan: dict[str, Any] = json.loads(cursor.fetchall()[0][0])[0]["Plan"]
    return plan


def pages_read(raw: Any, engine: Engine, operation: Operation[Any]) -> int:
    """Carry an operation, and count the pages that it touched, in whatever functions."""
    plan = plan_of(raw, engine, operation)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def scans(plan: dict[str, Any], table: str) -> Iterator[str | None]:
    """The indexes by which a plan reads a table; None where it reads it whole."""
    if plan.get("Relation Name") == table:
        yield plan.get("Index Name")
    for part in plan.get("Plans", ()):
        yield from scans(part, table)


def want(worker: Worker, at: datetime) -> Want:
    """A batch from every plain range and those of last attempts, from this place on."""
    return Want(worker.id, 1, BATCH, [("default", rank, at, 0) for rank in range(2 * LEVELS)])


def run_all(worker: Worker) -> None:
    """Claim and settle until nothing is left."""
    held = worker.claim(1_000)
    while held:
        held = worker.claim(1_000, settles=[Settle(job.lease, SUCCESS) for job in held])


@pytest.mark.slow
@on_servers
def test_a_turn_on_a_queue_that_keeps_up_does_not_read_the_dead(kind: str, places: Places) -> None:
    engine, actors, worker = scene(kind, places)
    with snapshot(engine):
        actors.add_many(JOBS)
        run_all(worker)
        actors.sql("analyze dibs.jobs")  # as autoanalyze would, at a moment when it is empty
        [(rows, pages, now)] = actors.sql(
            "select reltuples, relpages, clock_timestamp() from pg_class where oid = 'dibs.jobs'::regclass"
        )
        assert rows == 0
        assert pages > ALL_PAGES
        for name, outcome in OUTCOMES.items():
            with engine.connect() as raw:  # whose plans are made now
                read = []
                for _ in range(TURNS):
                    actors.add_many(2 * BATCH)
                    held = worker.claim(BATCH, ranks=[4])
                    settles = [Settle(job.lease, outcome(n)) for n, job in enumerate(held)]
                    read.append(pages_read(raw, engine, claims.turn(want(worker, now), settles)))
            assert min(read) < PAGES, name


@pytest.mark.slow
@on_servers
def test_a_claim_after_a_bulk_insert_does_not_read_it_all(kind: str, places: Places) -> None:
    engine, actors, worker = scene(kind, places)
    actors.sql("analyze dibs.jobs")
    with engine.connect() as raw:
        for _ in range(2 * TURNS):  # after five times PostgreSQL may keep a plan for ever
            pages_read(raw, engine, claims.turn(want(worker, START.at)))
        actors.add_many(JOBS)
        read = [pages_read(raw, engine, claims.turn(want(worker, START.at))) for _ in range(TURNS)]
    assert min(read) < PAGES


@pytest.mark.slow
@on_servers
def test_a_turn_on_a_full_queue_does_not_read_it_all(kind: str, places: Places) -> None:
    engine, actors, worker = scene(kind, places)
    actors.add_many(JOBS)
    actors.sql("analyze dibs.jobs")  # all of one queue and one rank: so its statistics say nothing for claim_order
    read = []
    with engine.connect() as raw:
        for _ in range(TURNS):
            settles = [Settle(job.lease, SUCCESS) for job in worker.claim(BATCH)]
            read.append(pages_read(raw, engine, claims.turn(want(worker, START.at), settles)))
    assert min(read) < PAGES


@pytest.mark.slow
@on_servers
def test_a_beat_finds_each_lease_by_its_id(kind: str, places: Places) -> None:
    """However many are held now, and however few were when the table was analyzed: else each is compared with each."""
    engine, actors, worker = scene(kind, places)
    actors.add_many(JOBS)
    actors.sql("analyze dibs.jobs")
    held = [job.lease for job in worker.claim(JOBS // 4)]
    with engine.connect() as raw:
        plan = plan_of(raw, engine, workers.beat([worker.id], held, steady=True))
    assert {*scans(plan, "jobs")} == {"jobs_pkey"}


@pytest.mark.slow
@on_servers
def test_a_claim_is_a_hot_update(kind: str, places: Places, crew: Crew) -> None:
    _, actors, worker = scene(kind, places)
    actors.add_many(JOBS // 10)
    while worker.claim(BATCH * 5):
        pass
    actors.sql("select pg_stat_force_next_flush()")

    def counted() -> tuple[int, int]:
        [(updated, hot)] = actors.sql(UPDATES)
        return updated, hot

    until(lambda: counted()[0] >= JOBS // 10, crew, "the statistics are there")
    assert counted() == (JOBS // 10, JOBS // 10)
