"""Jobs whose worker has no row are freed; one that somebody else has freed and claimed meanwhile is left alone.

PostgreSQL looks again at a row that has changed since the statement began, but not again at the rows of workers: a
worker that was enlisted since then is not there for it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from dibs.engines.postgres.engine import PostgresEngine
from dibs.job import JobState
from dibs.operations import workers
from tests.actors import Actors
from tests.engines import Engines

GATE = 4711
# Whoever frees this job waits at the gate: by then its statement has found all that it is to free.
TRIGGER = """
create function dibs.at_the_gate() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock({gate});
  return new;
end $$;
create trigger at_the_gate before update on dibs.jobs
for each row when (old.id = {job} and old.held) execute function dibs.at_the_gate();
"""
AT_THE_GATE = "select count(*) from pg_locks where locktype = 'advisory' and objid = %s and not granted"


@pytest.fixture
def actors(engines: Engines) -> Iterator[Actors]:
    """Some who free orphans, and some who work."""
    with engines.open("postgres18") as engine:
        yield Actors(engine)


def test_an_orphan_that_has_a_living_owner_by_now_is_left_to_it(actors: Actors) -> None:
    assert isinstance(actors.engine, PostgresEngine)
    (first, second), gone = actors.add_many(2), actors.worker()
    gone.claim(2)
    actors.sql(f"delete from dibs.workers where id = {gone.id}")
    with ThreadPoolExecutor(1) as pool, psycopg.connect(actors.engine.server.url, autocommit=True) as keeper:
        keeper.execute(TRIGGER.format(gate=GATE, job=first))
        keeper.execute("select pg_advisory_lock(%s)", [GATE])
        slow = pool.submit(actors.engine.run, workers.recover_orphans())
        while keeper.execute(AT_THE_GATE, [GATE]).fetchone() != (1,):
            pass
        assert actors.engine.run(workers.recover_orphans()) == 1  # the second: the first is locked
        actors.make_due()
        heir = actors.worker()
        (job,) = heir.claim()
        assert job.id == second
        keeper.execute("select pg_advisory_unlock(%s)", [GATE])
        assert slow.result(30) == 1
    assert heir.beat(job.lease).lost == frozenset()
    assert (actors.state(first), actors.state(second)) == (JobState.RETRY, JobState.RUNNING)
    assert heir.succeed(job).lost == frozenset()
    assert actors.state(second) is JobState.SUCCESSFUL
