"""Unique keys: held while the job is not final, optionally for a period after, freed by the statement that ends it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs.errors import UniqueKeyHeld
from dibs.job import JobState, NewJob
from dibs.lifecycle import Back, Done, Way
from dibs.operations import jobs, retention
from dibs.operations.jobs import Added, Bulk, Filter
from dibs.payload import encode
from tests.actors import Actors, Worker
from tests.conformance.elsewhere import another, elsewhere, rolled_back, through, until_somebody_waits
from tests.conformance.kinds import on_servers

ENDS = ["succeeds", "fails", "is cancelled", "is finished"]
GOES_ON = ["runs", "is retried", "is snoozed", "is released", "is recovered", "has to be finished"]


def add(actors: Actors, *keys: str, **options: object) -> list[Added]:
    return actors.engine.run(jobs.add_keyed([NewJob("task", unique_key=key, **options) for key in keys]))  # type: ignore[arg-type]  # a test's own options


def end(actors: Actors, worker: Worker, how: str) -> None:
    (job,) = worker.claim()
    match how:
        case "succeeds":
            worker.succeed(job)
        case "fails":
            worker.fail(job)
        case "is cancelled":
            actors.engine.run(jobs.cancel([job.id]))
        case "is finished":
            worker.settle(job, Back(Way.FINISH))
            worker.settle(worker.claim()[0], Done(JobState.FAILED))
        case "is retried":
            worker.retry(job)
        case "is snoozed":
            worker.settle(job, Back(Way.SNOOZE))
        case "is released":
            worker.settle(job, Back(Way.RELEASE))
        case "is recovered":
            actors.recover(worker)
        case "has to be finished":
            worker.settle(job, Back(Way.FINISH))


def expire(actors: Actors) -> None:
    """The periods of all keys are over."""
    actors.sql("update dibs.unique_keys set until = (select min(created_at) from dibs.jobs) where until is not null")


def test_a_held_key_gives_the_holder(actors: Actors) -> None:
    (first,) = add(actors, "k")
    (second,) = add(actors, "k")
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert (first.created_at, first.run_at) == (actors.get(first.id).created_at, actors.get(first.id).run_at)
    assert actors.get(first.id).unique_key == "k"
    assert actors.sql("select count(*) from dibs.jobs") == [(1,)]


def test_a_key_held_by_another_process_gives_the_holder(actors: Actors) -> None:
    (first,) = add(actors, "k")
    process = another(actors.engine)
    (second,) = add(Actors(process), "k")
    process.close()
    assert (second.created, second.id) == (False, first.id)


def test_a_key_belongs_to_its_type(actors: Actors) -> None:
    one, other = actors.add("mail", unique_key="k"), actors.add("task", unique_key="k")
    assert one != other


@pytest.mark.parametrize("how", GOES_ON)
def test_a_key_is_held_while_its_job(actors: Actors, how: str) -> None:
    (holder,) = add(actors, "k")
    end(actors, actors.worker(), how)
    assert [(added.id, added.created) for added in add(actors, "k")] == [(holder.id, False)]


@pytest.mark.parametrize("how", ENDS)
def test_a_key_is_freed_when_its_job(actors: Actors, how: str) -> None:
    (holder,) = add(actors, "k")
    end(actors, actors.worker(), how)
    (next_one,) = add(actors, "k")
    assert next_one.created
    assert next_one.id > holder.id


@pytest.mark.parametrize("how", ENDS)
def test_a_key_with_a_period_is_held_after_its_job(actors: Actors, how: str) -> None:
    (holder,) = add(actors, "k", unique_for=60.0)
    end(actors, actors.worker(), how)
    assert [(added.id, added.created) for added in add(actors, "k")] == [(holder.id, False)]
    actors.add()
    expire(actors)
    assert add(actors, "k")[0].created


def test_a_key_is_freed_only_by_its_own_job(actors: Actors) -> None:
    """A job whose key was taken by another in the meantime leaves it to that one."""
    (old,) = add(actors, "k")
    worker = actors.worker()
    worker.fail(*worker.claim())
    (holder,) = add(actors, "k")
    actors.sql(f"update dibs.dead set unique_key = null where id = {old.id}")
    actors.engine.run(jobs.retry(old.id))
    actors.sql(f"update dibs.jobs set unique_key = 'k' where id = {old.id}")
    actors.engine.run(jobs.cancel([old.id]))
    assert add(actors, "k")[0].id == holder.id


def test_a_batch_adds_each_key_once(actors: Actors) -> None:
    added = add(actors, "a", "b", "a", "c", "b")
    assert [one.created for one in added] == [True, True, False, True, False]
    assert (added[2].id, added[4].id) == (added[0].id, added[1].id)
    assert len({one.id for one in added}) == 3


def test_the_first_of_its_key_in_a_batch_is_added(actors: Actors) -> None:
    wanted = [NewJob("task", encode(n), unique_key="k", queue=f"q{n}") for n in range(3)]
    first = actors.engine.run(jobs.add_keyed(wanted))[0]
    assert (actors.get(first.id).payload, actors.get(first.id).queue) == (0, "q0")


def test_a_batch_may_meet_held_and_expired_keys(actors: Actors) -> None:
    (held,) = add(actors, "held")
    (expired,) = add(actors, "expired", unique_for=60.0)
    actors.engine.run(jobs.cancel([expired.id]))
    expire(actors)
    added = add(actors, "new", "held", "expired", "expired")
    assert [one.created for one in added] == [True, False, True, False]
    assert (added[1].id, added[3].id) == (held.id, added[2].id)
    assert added[2].id > expired.id


def test_many_give_the_ids_of_the_holders_in_order(actors: Actors) -> None:
    (held,) = add(actors, "b")
    wanted = [NewJob("task", unique_key=key) for key in ("a", "b", "a", None, "c")]
    a, b, a_again, plain, c = actors.engine.run(jobs.add_many(wanted))
    assert (a_again, b) == (a, held.id)
    assert len({a, b, plain, c}) == 4


def test_a_key_that_is_rolled_back_is_free(actors: Actors) -> None:
    with rolled_back(actors.engine) as other:
        add(other, "k")
    assert add(actors, "k")[0].created


def test_expired_keys_are_pruned(actors: Actors) -> None:
    for key in ("a", "b", "c"):
        add(actors, key, unique_for=60.0)
    worker = actors.worker()
    for job in worker.claim(2):
        worker.succeed(job)
    assert actors.engine.run(retention.lapsed()) == 0
    expire(actors)
    assert actors.engine.run(retention.lapsed()) == 2
    assert actors.sql("select key from dibs.unique_keys") == [("c",)]


# A person retries


def test_a_retry_takes_the_key_again(actors: Actors) -> None:
    (added,) = add(actors, "k")
    worker = actors.worker()
    worker.fail(*worker.claim())
    actors.engine.run(jobs.retry(added.id))
    assert [(one.id, one.created) for one in add(actors, "k")] == [(added.id, False)]
    worker.succeed(*worker.claim())
    assert add(actors, "k")[0].created


def test_a_retry_within_its_own_period_keeps_the_key_until_the_end(actors: Actors) -> None:
    (added,) = add(actors, "k", unique_for=60.0)
    worker = actors.worker()
    worker.fail(*worker.claim())
    actors.engine.run(jobs.retry(added.id))
    assert actors.sql("select until from dibs.unique_keys") == [(None,)]


def test_a_retry_is_refused_while_another_holds_the_key(actors: Actors) -> None:
    (old,) = add(actors, "k")
    worker = actors.worker()
    worker.fail(*worker.claim())
    (holder,) = add(actors, "k")
    with pytest.raises(UniqueKeyHeld) as caught:
        actors.engine.run(jobs.retry(old.id))
    assert (caught.value.job_id, caught.value.holder) == (old.id, holder.id)
    assert (actors.state(old.id), actors.state(holder.id)) == ("FAILED", "PENDING")
    worker.succeed(*worker.claim())
    actors.engine.run(jobs.retry(old.id))
    assert actors.state(old.id) is JobState.PENDING


def test_a_retry_takes_a_key_whose_period_is_over(actors: Actors) -> None:
    (old,) = add(actors, "k")
    actors.engine.run(jobs.cancel([old.id]))
    (other,) = add(actors, "k", unique_for=60.0)
    actors.engine.run(jobs.cancel([other.id]))
    with pytest.raises(UniqueKeyHeld):
        actors.engine.run(jobs.retry(old.id))
    actors.add()
    expire(actors)
    actors.engine.run(jobs.retry(old.id))
    assert add(actors, "k")[0].id == old.id


def test_a_bulk_retry_counts_those_whose_key_is_held(actors: Actors) -> None:
    (held, free), plain = add(actors, "held", "free"), actors.add()
    actors.engine.run(jobs.cancel([held.id, free.id, plain]))
    add(actors, "held")
    assert actors.engine.run(jobs.retry_matching(Filter())) == Bulk(2, 1, None)
    assert [actors.state(job_id) for job_id in (held.id, free.id, plain)] == ["CANCELLED", "PENDING", "PENDING"]


def test_a_bulk_retry_brings_back_one_of_each_key(actors: Actors) -> None:
    ids = []
    for _ in range(3):
        ids.append(add(actors, "k")[0].id)
        actors.engine.run(jobs.cancel(ids[-1:]))
    assert actors.engine.run(jobs.retry_matching(Filter())) == Bulk(1, 2, None)
    assert [actors.state(job_id) for job_id in ids] == ["PENDING", "CANCELLED", "CANCELLED"]


def test_a_bulk_retry_prefers_the_one_whose_period_is_not_over(actors: Actors) -> None:
    (old,) = add(actors, "k")
    actors.engine.run(jobs.cancel([old.id]))
    (holder,) = add(actors, "k", unique_for=60.0)
    actors.engine.run(jobs.cancel([holder.id]))
    assert actors.engine.run(jobs.retry_matching(Filter())) == Bulk(1, 1, None)
    assert [actors.state(job_id) for job_id in (old.id, holder.id)] == ["CANCELLED", "PENDING"]


# Beside open transactions


@on_servers
@pytest.mark.parametrize("how", ENDS)
def test_an_open_transaction_that_meets_a_key_does_not_stop_its_holder(actors: Actors, how: str) -> None:
    (holder,) = add(actors, "k")
    worker = actors.worker()
    with elsewhere(actors.engine) as other:
        assert add(other, "k")[0].id == holder.id
        end(actors, worker, how)
    assert add(actors, "k")[0].created


@on_servers
def test_two_transactions_that_want_a_key_agree(actors: Actors) -> None:
    with ThreadPoolExecutor(1) as thread:
        with elsewhere(actors.engine) as other:
            (first,) = add(other, "k")
            second = thread.submit(add, actors, "k")
            until_somebody_waits(actors)
        assert [(one.id, one.created) for one in second.result()] == [(first.id, False)]


@on_servers
def test_a_key_that_is_being_freed_can_be_had_after_the_commit(actors: Actors) -> None:
    (first,), worker = add(actors, "k"), actors.worker()
    (job,) = worker.claim()
    with ThreadPoolExecutor(1) as thread:
        with elsewhere(actors.engine) as other:
            through(worker, other).succeed(job)
            second = thread.submit(add, actors, "k")
            until_somebody_waits(actors)
        assert second.result()[0].created
    assert second.result()[0].id > first.id
