"""A lagging standby is promoted: it hands out the same counters again, and still the old owner cannot write.

Two real servers. The standby is cut off, the primary goes on and dies, the standby becomes the primary: what was
claimed last never happened there, and its sequence of tokens goes on where the standby's log ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from dibs.engines.postgres.engine import PostgresEngine
from dibs.errors import LeaseLost
from dibs.job import JobState, Lease
from dibs.operations import claims, jobs
from dibs.payload import encode
from tests.actors import Actors
from tests.scenarios.claimer import success
from tests.scenarios.places import long
from tests.servers import Server
from tests.servers.fixtures import OwnServer

LOGGED_AHEAD = 32  # PostgreSQL logs a sequence that far ahead: so many numbers are skipped after a crash, not repeated
RANDOM_BITS = "<< 20 | floor(random() * 1048576)::bigint"
FUNCTIONS = "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'dibs'::regnamespace and prosrc like %s"


@dataclass(frozen=True)
class Queue:
    """A database that moves from one server to another, and how many bits of its tokens are random."""

    database: str
    bits: int

    @contextmanager
    def on(self, server: Server) -> Iterator[Actors]:
        """Those who use it there."""
        engine = PostgresEngine(server.url(self.database))
        yield Actors(engine)
        engine.close()

    def counter(self, lease: Lease) -> int:
        """What is not random in a token."""
        return lease.token >> self.bits


def real_queue(server: Server) -> Queue:
    queue = Queue(server.create_database(), bits=20)
    engine = PostgresEngine(server.url(queue.database))
    engine.migrate()
    engine.close()
    return queue


def naive_queue(server: Server) -> Queue:
    """The same, but its tokens are bare counters."""
    queue = Queue(real_queue(server).database, bits=0)
    with psycopg.connect(server.url(queue.database)) as connection:
        functions = connection.execute(FUNCTIONS, [f"%{RANDOM_BITS}%"]).fetchall()
        assert functions
        for (text,) in functions:
            connection.execute(text.replace(RANDOM_BITS, ""))
    return queue


def claim_unseen(queue: Queue, primary: Server) -> Lease:
    """The old owner claims the job, with a counter beyond all that the standby has heard of."""
    with queue.on(primary) as actors:
        owner = actors.worker()
        actors.add_many(2 * LOGGED_AHEAD, queue="others")
        owner.claim(2 * LOGGED_AHEAD, "others")
        (job,) = owner.claim()
        return job.lease


def claim_with_the_same_counter(queue: Queue, actors: Actors, old: Lease) -> Lease:
    """The heir claims the job on the new primary, just when the sequence has come to that counter again."""
    assert actors.state(old.job_id) is JobState.PENDING  # the first claim never happened here
    while actors.sql("select nextval('dibs.token')")[0][0] < queue.counter(old) - 1:
        pass
    (job,) = actors.worker().claim()
    assert (job.id, queue.counter(job.lease)) == (old.job_id, queue.counter(old))
    return job.lease


@pytest.mark.slow
@pytest.mark.parametrize("version", ["postgres18", *long("postgres16", "postgres-system")])
def test_a_promoted_standby_refuses_the_old_owner(version: str, own_postgres: OwnServer) -> None:
    primary = own_postgres(version)
    queues = real, naive = real_queue(primary), naive_queue(primary)
    standby = primary.standby()
    for queue in queues:
        with queue.on(primary) as actors:
            actors.add()
    standby.catch_up(primary)
    standby.cut_off()
    old = {queue: claim_unseen(queue, primary) for queue in queues}
    primary.kill()
    standby.promote()

    with real.on(standby) as actors:
        new = claim_with_the_same_counter(real, actors, old[real])
        assert new.token != old[real].token
        assert actors.engine.run(claims.settle([success(old[real], encode("late"))])).lost == {new.job_id}
        with pytest.raises(LeaseLost):
            actors.engine.run(jobs.progress(old[real], encode("late")))
        assert not actors.engine.run(claims.settle([success(new, encode("in time"))])).lost
        assert (actors.get(new.job_id).result, actors.get(new.job_id).progress) == ("in time", None)
    with naive.on(standby) as actors:  # what the random bits are for
        assert claim_with_the_same_counter(naive, actors, old[naive]) == old[naive]
        assert not actors.engine.run(claims.settle([success(old[naive], encode("late"))])).lost
        assert actors.get(old[naive].job_id).result == "late"
