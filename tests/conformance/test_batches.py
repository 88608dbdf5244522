"""Batches: jobs that are counted together, wherever they come to their ends; and the jobs that follow, exactly once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dibs.batch import BatchProgress, BatchState
from dibs.engines.engine import Engine
from dibs.errors import BatchClosed, BatchNotFound, Conflict
from dibs.job import Claimed, JobState, Lease, NewJob
from dibs.lifecycle import Back, Done, Way
from dibs.operations import batches, claims, jobs, retention
from dibs.payload import encode
from tests.actors import Actors, Worker
from tests.conformance.elsewhere import WAITING, elsewhere, rolled_back, through, until_somebody_waits
from tests.conformance.kinds import on_servers

BULK = 1_200  # by COPY on PostgreSQL, in three parts


def hook(name: str, type: str, payload: Any = None, **options: Any) -> dict[str, Any]:
    return {
        "hook": name,
        "queue": "hooks",
        "rank": 4,
        "type": type,
        "run_at": None,
        "delay": 0,
        "max_attempts": 3,
        "payload": payload,
        "tags": None,
        "submits": False,
        **options,
    }


HOOKS = encode([hook("on_complete", "completed"), hook("on_success", "succeeded"), hook("on_failure", "failed")])


def begin(actors: Actors, name: str | None = None) -> int:
    return actors.engine.run(batches.begin(name, HOOKS))


def numbered(count: int, **options: Any) -> Iterator[NewJob]:
    return (NewJob("task", encode({"n": n}), **options) for n in range(count))


def add(actors: Actors, batch: int, count: int = 1, lease: Lease | None = None, **options: Any) -> list[int]:
    return [int(job) for job in actors.engine.run(batches.add(batch, numbered(count, **options), lease))]


def close(actors: Actors, batch: int) -> None:
    actors.engine.run(batches.close(batch))


def look(actors: Actors, batch: int) -> BatchProgress:
    return actors.engine.run(batches.progress(batch))


def counted(actors: Actors, batch: int) -> tuple[int, int, int, int]:
    """Total, successful, failed, cancelled; and they are what the rows say."""
    seen = look(actors, batch)
    assert seen.unfinished == sum((seen.waiting, seen.retry, seen.running, seen.processing))  # type: ignore[arg-type]
    in_rows = tuple(
        rows_of(actors, batch, state) for state in (JobState.SUCCESSFUL, JobState.FAILED, JobState.CANCELLED)
    )
    assert (seen.successful, seen.failed, seen.cancelled) == in_rows
    return seen.total, seen.successful, seen.failed, seen.cancelled


def rows_of(actors: Actors, batch: int, state: JobState) -> int:
    table = "history" if state is JobState.SUCCESSFUL else "dead"
    of_batch = f"part in (select id from dibs.parts where batch = {batch})"
    return int(actors.sql(f"select count(*) from dibs.{table} where state = {state.code} and {of_batch}")[0][0])


def fired(actors: Actors) -> list[tuple[str, Any]]:
    """The hooks' jobs, in the order in which they were added."""
    found = actors.engine.run(jobs.page(jobs.Filter(queue="hooks"), limit=50)).jobs
    return sorted((job.type, job.payload) for job in found)


def failed(batch: int) -> list[tuple[str, Any]]:
    return [("completed", {"batch_id": batch}), ("failed", {"batch_id": batch})]


def succeeded(batch: int) -> list[tuple[str, Any]]:
    return [("completed", {"batch_id": batch}), ("succeeded", {"batch_id": batch})]


def settle_all(worker: Worker, claimed: list[Claimed], state: JobState = JobState.SUCCESSFUL) -> None:
    worker.engine.run(claims.settle([claims.Settle(job.lease, Done(state)) for job in claimed]))


# Adding and counting


def test_a_new_batch_is_open_and_empty(actors: Actors) -> None:
    seen = look(actors, begin(actors, "mails"))
    assert (seen.name, seen.state, seen.total, seen.unfinished) == ("mails", BatchState.OPEN, 0, 0)
    assert (seen.waiting, seen.retry, seen.running, seen.processing) == (0, 0, 0, 0)
    assert seen.created_at is not None
    assert (seen.closed_at, seen.finished_at) == (None, None)


def test_jobs_of_a_batch_are_like_others(actors: Actors) -> None:
    batch = begin(actors)
    ids = actors.engine.run(batches.add(batch, numbered(3, queue="q", priority=9, tags=encode(["t"]))))
    assert [actors.get(job).payload for job in ids] == [{"n": 0}, {"n": 1}, {"n": 2}]
    job = actors.get(ids[0])
    assert (job.queue, job.priority, job.tags, job.state) == ("q", 9, ("t",), JobState.PENDING)
    assert [claimed.id for claimed in actors.worker().claim(5, "q")] == ids


@pytest.mark.parametrize("options", [{}, {"delay": 60.0}])
def test_many_jobs_have_several_parts(actors: Actors, options: Any) -> None:
    batch = begin(actors)
    ids = add(actors, batch, BULK, **options)
    assert ids == sorted(set(ids))
    assert len(ids) == BULK
    assert counted(actors, batch) == (BULK, 0, 0, 0)
    parts = actors.sql(f"select id, last, total from dibs.parts where batch = {batch} order by id")
    assert parts == [(ids[0], ids[499], 500), (ids[500], ids[999], 500), (ids[1000], ids[-1], 200)]
    assert actors.get(ids[-1]).payload == {"n": BULK - 1}
    assert actors.sql(
        "select count(*) from dibs.jobs j join dibs.parts p on p.id = j.part and j.id between p.id and p.last"
    ) == [(BULK,)]


def test_jobs_of_several_kinds_and_in_several_goes(actors: Actors) -> None:
    batch = begin(actors)
    new = [
        NewJob("a"),
        NewJob("b"),
        NewJob("b"),
        NewJob("c", unique_key="k"),
        NewJob("c", unique_key="k"),
        NewJob("d", submits=True),
    ]
    ids = actors.engine.run(batches.add(batch, new))
    assert [actors.get(job).type for job in ids] == ["a", "b", "b", "c", "c", "d"]
    assert ids[3] == ids[4]
    add(actors, batch, 2)
    assert counted(actors, batch) == (7, 0, 0, 0)


def test_many_that_are_handed_to_a_provider_keep_that_mark(actors: Actors) -> None:
    batch = begin(actors)
    add(actors, batch, 600, submits=True)
    assert actors.sql("select count(*) from dibs.jobs where submits and part is not null") == [(600,)]


def test_a_job_whose_key_is_held_is_not_of_the_batch(actors: Actors) -> None:
    before = actors.add(unique_key="k")
    batch = begin(actors)
    assert actors.engine.run(batches.add(batch, [NewJob("task", unique_key="k")])) == [before]
    assert counted(actors, batch) == (0, 0, 0, 0)
    actors.engine.run(batches.add(batch, [NewJob("task", unique_key=str(n)) for n in range(BULK)]))
    assert counted(actors, batch) == (BULK, 0, 0, 0)


def test_what_is_rolled_back_was_never_there(actors: Actors, engine: Engine) -> None:
    batch = begin(actors)
    with rolled_back(engine) as other:
        add(other, batch, BULK)
    assert counted(actors, batch) == (0, 0, 0, 0)
    with elsewhere(engine) as other:
        add(other, batch, 3)
    assert counted(actors, batch) == (3, 0, 0, 0)


def test_it_is_told_what_the_unfinished_ones_do(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch, 4)
    running, retried = worker.claim(2)
    worker.retry(retried, delay=60)
    seen = look(actors, batch)
    assert (seen.waiting, seen.retry, seen.running, seen.processing, seen.unfinished) == (2, 1, 1, 0, 4)
    worker.succeed(running)
    assert counted(actors, batch) == (4, 1, 0, 0)


# Ends


def test_every_end_is_counted(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch, 5)
    good, bad, snoozed, cancelled, last = worker.claim(5)
    worker.succeed(good)
    worker.fail(bad)
    worker.settle(snoozed, Back(Way.SNOOZE))
    actors.engine.run(jobs.cancel([cancelled.id]))
    assert counted(actors, batch) == (5, 1, 1, 1)
    worker.succeed(cancelled)  # too late
    worker.succeed(good)  # said twice
    assert counted(actors, batch) == (5, 1, 1, 1)
    worker.settle(last, Done(JobState.CANCELLED))
    assert counted(actors, batch) == (5, 1, 1, 2)


def test_a_job_at_its_provider_that_is_cancelled_twice_counts_once(actors: Actors) -> None:
    """It is not final before the provider was told."""
    batch, worker = begin(actors), actors.worker()
    (job_id,) = add(actors, batch)
    close(actors, batch)
    worker.settle(*worker.claim(1), Back(Way.POLL))
    for _ in range(2):
        actors.engine.run(jobs.cancel([job_id]))  # type: ignore[list-item]
        assert (counted(actors, batch), fired(actors)) == ((1, 0, 0, 0), [])
    worker.settle(*worker.claim(1), Done(JobState.CANCELLED))
    assert (counted(actors, batch), fired(actors)) == ((1, 0, 0, 1), failed(batch))


def test_many_ends_in_one_turn(actors: Actors) -> None:
    first, second, worker = begin(actors), begin(actors), actors.worker()
    add(actors, first, 700)
    add(actors, second, 10)
    actors.add_many(10)
    taken = worker.claim(1_000)
    outcomes = (JobState.SUCCESSFUL, JobState.FAILED, JobState.SUCCESSFUL)
    settles = [claims.Settle(job.lease, Done(outcomes[n % 3])) for n, job in enumerate(taken)]
    assert len(worker.claim(1, settles=settles)) == 0
    assert counted(actors, first) == (700, 467, 233, 0)
    assert counted(actors, second) == (10, 6, 4, 0)


def test_a_job_that_kills_its_workers_ends_in_failed(actors: Actors) -> None:
    batch = begin(actors)
    add(actors, batch, 1, max_attempts=1)
    close(actors, batch)
    dead = actors.worker()
    assert dead.claim(1)
    actors.recover(dead)
    actors.make_due()
    (job,) = (worker := actors.worker()).claim(1)
    assert job.finishing
    assert counted(actors, batch) == (1, 0, 0, 0)
    worker.fail(job)
    assert counted(actors, batch) == (1, 0, 1, 0)
    assert fired(actors) == failed(batch)


def test_a_persons_retry_takes_it_back(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    one, two = add(actors, batch, 2)
    worker.fail(*worker.claim(1))
    actors.engine.run(jobs.cancel([two]))
    assert counted(actors, batch) == (2, 0, 1, 1)
    actors.engine.run(jobs.retry(one))
    assert counted(actors, batch) == (2, 0, 0, 1)
    actors.engine.run(jobs.retry(two))
    assert counted(actors, batch) == (2, 0, 0, 0)
    close(actors, batch)
    assert fired(actors) == []
    settle_all(worker, worker.claim(2))
    assert counted(actors, batch) == (2, 2, 0, 0)
    assert fired(actors) == succeeded(batch)


def test_a_finished_batch_stays_finished_when_its_jobs_are_retried(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    (job,) = add(actors, batch)
    close(actors, batch)
    worker.fail(*worker.claim(1))
    before = look(actors, batch)
    assert before.state is BatchState.FINISHED
    actors.engine.run(jobs.retry(job))
    again = look(actors, batch)
    assert (again.finished_at, again.unfinished, again.state) == (before.finished_at, 1, BatchState.FINISHED)
    worker.succeed(*worker.claim(1))
    assert counted(actors, batch) == (1, 1, 0, 0)
    assert fired(actors) == failed(batch)


# Finishing


@pytest.mark.parametrize("state, hooks", [(JobState.SUCCESSFUL, succeeded), (JobState.FAILED, failed)])
def test_hooks_follow_the_last_job(actors: Actors, state: JobState, hooks: Callable[[int], Any]) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch, 3)
    close(actors, batch)
    first, second, third = worker.claim(3)
    settle_all(worker, [first, second])
    assert (look(actors, batch).state, fired(actors)) == (BatchState.CLOSED, [])
    settle_all(worker, [third], state)
    assert (look(actors, batch).state, fired(actors)) == (BatchState.FINISHED, hooks(batch))


def test_an_open_batch_does_not_finish(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    worker.succeed(*worker.claim(1))
    assert (look(actors, batch).state, fired(actors)) == (BatchState.OPEN, [])
    close(actors, batch)
    assert (look(actors, batch).state, fired(actors)) == (BatchState.FINISHED, succeeded(batch))


def test_closed_with_no_jobs_it_finishes_at_once(actors: Actors) -> None:
    batch = begin(actors)
    close(actors, batch)
    assert (look(actors, batch).state, fired(actors)) == (BatchState.FINISHED, succeeded(batch))


def test_closed_twice_nothing_happens(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    close(actors, batch)
    before = look(actors, batch)
    close(actors, batch)
    assert look(actors, batch) == before
    worker.succeed(*worker.claim(1))
    close(actors, batch)
    assert fired(actors) == succeeded(batch)


def test_cancelling_the_last_finishes_it(actors: Actors) -> None:
    batch = begin(actors)
    ids = add(actors, batch, 3)
    close(actors, batch)
    actors.engine.run(jobs.cancel(ids))
    assert (counted(actors, batch), fired(actors)) == ((3, 0, 0, 3), failed(batch))


def test_a_hook_has_its_own_options(actors: Actors) -> None:
    listed = [
        hook("on_complete", "a", '{"x": "it\'s \\"1\\" \\\\ ☃"}', tags='["t"]', rank=1, max_attempts=7),
        hook("on_complete", "b", delay=60.5),
        hook("on_complete", "c", run_at=4_000_000_000.25, submits=True),
    ]
    batch = actors.engine.run(batches.begin(None, encode(listed)))
    close(actors, batch)
    a, b, c = sorted(actors.engine.run(jobs.page(jobs.Filter(queue="hooks"))).jobs, key=lambda job: job.type)
    assert (a.payload, a.tags, a.priority, a.max_attempts) == ({"x": 'it\'s "1" \\ ☃'}, ("t",), 8, 7)
    assert a.run_at == a.created_at
    assert (b.run_at - b.created_at).total_seconds() == 60.5  # type: ignore[operator]
    assert c.run_at.timestamp() == 4_000_000_000.25  # type: ignore[union-attr]
    assert actors.sql("select type from dibs.jobs where submits") == [("c",)]


def test_a_batch_without_hooks_just_finishes(actors: Actors) -> None:
    batch = actors.engine.run(batches.begin(None, None))
    close(actors, batch)
    assert look(actors, batch).state is BatchState.FINISHED
    assert actors.sql("select count(*) from dibs.jobs") == [(0,)]


def test_what_finishes_in_a_transaction_that_is_undone_is_not_finished(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    close(actors, batch)
    (job,) = worker.claim(1)
    with rolled_back(engine) as other:
        through(worker, other).succeed(job)
        assert look(other, batch).state is BatchState.FINISHED
    assert (look(actors, batch).state, fired(actors)) == (BatchState.CLOSED, [])
    worker.succeed(job)
    assert fired(actors) == succeeded(batch)


# At the same moment, where there are many writers


@contextmanager
def meanwhile(act: Callable[[], Any]) -> Iterator[None]:
    """Somebody else does that while the block runs; and has done it afterwards."""
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert trouble == []


def two_parts(actors: Actors, batch: int, worker: Worker) -> list[Claimed]:
    """The last two jobs of a batch, each in a part of its own."""
    add(actors, batch)
    add(actors, batch)
    return worker.claim(2)


@on_servers
def test_two_last_jobs_in_two_held_transactions(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    one, two = two_parts(actors, batch, worker)
    close(actors, batch)
    with elsewhere(engine) as other:
        through(worker, other).succeed(one)
        with meanwhile(lambda: worker.succeed(two)):
            until_somebody_waits(actors)
            assert look(actors, batch).unfinished == 2
            other.sql("commit")
            other.sql("begin")
    assert (counted(actors, batch), fired(actors)) == ((2, 2, 0, 0), succeeded(batch))


@on_servers
def test_two_last_jobs_of_one_part_in_two_held_transactions(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch, 2)
    one, two = worker.claim(2)
    close(actors, batch)
    with elsewhere(engine) as other:
        through(worker, other).succeed(one)
        with meanwhile(lambda: worker.fail(two)):
            until_somebody_waits(actors)
            other.sql("commit")
            other.sql("begin")
    assert (counted(actors, batch), fired(actors)) == ((2, 1, 1, 0), failed(batch))


@on_servers
def test_two_that_have_counted_before_either_looks(actors: Actors, engine: Engine) -> None:
    """Neither waits for the other's part; whoever comes second to the batch's row sees both."""
    batch, worker = begin(actors), actors.worker()
    one, two = two_parts(actors, batch, worker)
    close(actors, batch)
    with elsewhere(engine) as other:
        other.sql(f"select id from dibs.batches where id = {batch} for no key update")
        with meanwhile(lambda: worker.succeed(one)), meanwhile(lambda: worker.succeed(two)):
            while actors.sql(WAITING)[0][0] < 2:
                pass
            other.sql("commit")
            other.sql("begin")
    assert (counted(actors, batch), fired(actors)) == ((2, 2, 0, 0), succeeded(batch))


@on_servers
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_one_snapshot_for_a_whole_transaction_does_not_miss_the_end(actors: Actors, engine: Engine, level: str) -> None:
    batch, worker = begin(actors), actors.worker()
    one, two = two_parts(actors, batch, worker)
    close(actors, batch)
    with rolled_back(engine) as other:
        other.sql("commit")
        other.sql(f"begin isolation level {level}")
        other.sql("select 1 from dibs.batches")
        worker.succeed(two)
        with pytest.raises(Conflict, match="could not serialize"):
            through(worker, other).succeed(one)
    assert fired(actors) == []
    worker.succeed(one)
    assert fired(actors) == succeeded(batch)


@on_servers
def test_closing_while_the_last_one_is_settled(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    (job,) = worker.claim(1)
    with elsewhere(engine) as other:
        through(worker, other).succeed(job)
        with meanwhile(lambda: close(actors, batch)):
            until_somebody_waits(actors)
            other.sql("commit")
            other.sql("begin")
    assert (look(actors, batch).state, fired(actors)) == (BatchState.FINISHED, succeeded(batch))


@on_servers
def test_settling_the_last_one_while_it_is_closed(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    (job,) = worker.claim(1)
    with elsewhere(engine) as other:
        close(other, batch)
        with meanwhile(lambda: worker.succeed(job)):
            until_somebody_waits(actors)
            other.sql("commit")
            other.sql("begin")
    assert (look(actors, batch).state, fired(actors)) == (BatchState.FINISHED, succeeded(batch))


@on_servers
def test_closing_waits_for_those_who_add(actors: Actors, engine: Engine) -> None:
    batch = begin(actors)
    with elsewhere(engine) as other:
        add(other, batch)
        with meanwhile(lambda: close(actors, batch)):
            until_somebody_waits(actors)
            other.sql("commit")
            other.sql("begin")
    assert (look(actors, batch).state, look(actors, batch).total, fired(actors)) == (BatchState.CLOSED, 1, [])


@on_servers
def test_who_adds_keeps_nobody_from_settling(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    with elsewhere(engine) as other:
        add(other, batch, BULK)
        worker.succeed(*worker.claim(1))
        assert look(actors, batch).successful == 1
    assert counted(actors, batch) == (BULK + 1, 1, 0, 0)


@on_servers
def test_parts_are_counted_in_the_order_of_their_ids(actors: Actors, engine: Engine) -> None:
    """Two turns with jobs of the same two parts, named in any order, wait for each other in one direction only."""
    batch, worker = begin(actors), actors.worker()
    add(actors, batch, 2)
    add(actors, batch, 2)
    a, b, c, d = worker.claim(4)
    with elsewhere(engine) as other:
        other.sql(f"select id from dibs.parts where id = {a.id} for no key update")
        with meanwhile(lambda: settle_all(worker, [d, b])):
            until_somebody_waits(actors)
            other.sql(f"select id from dibs.parts where id = {c.id} for no key update nowait")
            settle_all(through(worker, other), [c, a])
            other.sql("commit")
            other.sql("begin")
    assert counted(actors, batch) == (4, 4, 0, 0)


@on_servers
def test_a_cancel_that_waits_for_a_part_has_no_job(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    _, two = add(actors, batch, 2)
    (job,) = worker.claim(1)
    with elsewhere(engine) as other:
        through(worker, other).succeed(job)
        with meanwhile(lambda: actors.engine.run(jobs.cancel([two]))):
            until_somebody_waits(actors)
            assert other.sql(f"select id from dibs.jobs where id = {two} for update nowait") == [(two,)]
            other.sql("commit")
            other.sql("begin")
    assert counted(actors, batch) == (2, 1, 0, 1)


# From its own jobs


def test_a_closed_batch_takes_jobs_from_its_own(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    close(actors, batch)
    (job,) = worker.claim(1)
    add(actors, batch, BULK, job.lease)
    worker.succeed(job)
    assert (look(actors, batch).state, counted(actors, batch)) == (BatchState.CLOSED, (BULK + 1, 1, 0, 0))
    settle_all(worker, worker.claim(BULK))
    assert fired(actors) == succeeded(batch)


def test_a_closed_batch_takes_jobs_in_the_transaction_of_its_own(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    close(actors, batch)
    (job,) = worker.claim(1)
    with elsewhere(engine) as other:
        add(other, batch, 3, job.lease)
        through(worker, other).succeed(job)
    assert (look(actors, batch).state, counted(actors, batch)) == (BatchState.CLOSED, (4, 1, 0, 0))


def test_a_closed_batch_takes_jobs_from_nobody_else(actors: Actors) -> None:
    batch, other, worker = begin(actors), begin(actors), actors.worker()
    add(actors, batch)
    add(actors, other)
    actors.add()
    close(actors, batch)
    own, foreign, plain = worker.claim(3)
    for lease in (None, foreign.lease, plain.lease, Lease(own.id, own.token + 1)):
        with pytest.raises(BatchClosed, match="only its own jobs"):
            add(actors, batch, 1, lease)
    assert counted(actors, batch) == (1, 0, 0, 0)


def test_a_job_that_was_lost_adds_nothing(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch, 2)
    close(actors, batch)
    taken, cancelled = worker.claim(2)
    actors.engine.run(jobs.cancel([cancelled.id]))
    actors.recover(worker)
    for job in (taken, cancelled):
        with pytest.raises(BatchClosed):
            add(actors, batch, 1, job.lease)


def test_a_finished_batch_takes_nothing(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    (job,) = add(actors, batch)
    close(actors, batch)
    worker.fail(*worker.claim(1))
    actors.engine.run(jobs.retry(job))
    (again,) = worker.claim(1)
    for lease in (None, again.lease):
        with pytest.raises(BatchClosed, match="has finished"):
            add(actors, batch, 1, lease)


@on_servers
def test_a_job_that_adds_cannot_be_cancelled_meanwhile(actors: Actors, engine: Engine) -> None:
    batch, worker = begin(actors), actors.worker()
    add(actors, batch)
    close(actors, batch)
    (job,) = worker.claim(1)
    with elsewhere(engine) as other:
        add(other, batch, 1, job.lease)
        with meanwhile(lambda: actors.engine.run(jobs.cancel([job.id]))):
            until_somebody_waits(actors)
            other.sql("commit")
            other.sql("begin")
    assert (look(actors, batch).state, counted(actors, batch)) == (BatchState.CLOSED, (2, 0, 0, 1))


@pytest.mark.parametrize("batch", [0, -1, 7, 2**63])
def test_there_is_no_such_batch(actors: Actors, batch: int) -> None:
    for operation in (batches.add(batch, numbered(1)), batches.progress(batch)):
        with pytest.raises(BatchNotFound):
            actors.engine.run(operation)  # type: ignore[arg-type]


# All that it has


def cancel(actors: Actors, batch: int) -> int:
    done, cursor = 0, 0
    while cursor is not None:
        step = actors.engine.run(batches.cancel_some(batch, after=cursor))
        done, cursor = done + step.done, step.cursor  # type: ignore[assignment]
    return done


def test_all_that_is_left_is_cancelled(actors: Actors) -> None:
    batch, other, worker = begin(actors), begin(actors), actors.worker()
    add(actors, batch, BULK)
    add(actors, other, 3)
    worker.succeed(*worker.claim(1))
    worker.claim(5)
    assert cancel(actors, batch) == BULK - 1
    assert counted(actors, batch) == (BULK, 1, 0, BULK - 1)
    assert counted(actors, other) == (3, 0, 0, 0)
    assert cancel(actors, batch) == 0


def test_its_failed_ones_are_retried(actors: Actors) -> None:
    batch, worker = begin(actors), actors.worker()
    ids = add(actors, batch, BULK)
    actors.add_many(3)
    settle_all(worker, worker.claim(700), JobState.FAILED)
    settle_all(worker, worker.claim(BULK - 701))
    settle_all(worker, worker.claim(4), JobState.FAILED)
    actors.engine.run(jobs.cancel([ids[-1]]))
    first = actors.engine.run(batches.retry_some(batch))
    second = actors.engine.run(batches.retry_some(batch, after=first.cursor or 0))
    assert (first.done, second.done, second.cursor) == (500, 201, None)
    assert counted(actors, batch) == (BULK, BULK - 701, 0, 0)
    assert rows_of(actors, batch, JobState.FAILED) == 0


def test_batches_are_listed_newest_first(actors: Actors) -> None:
    ids = [begin(actors, str(n)) for n in range(5)]
    add(actors, ids[1], 3)
    close(actors, ids[4])
    page = actors.engine.run(batches.page(limit=2))
    assert [each.id for each in page.batches] == [ids[4], ids[3]]
    page = actors.engine.run(batches.page(limit=10, before=page.cursor))
    assert ([each.id for each in page.batches], page.cursor) == ([ids[2], ids[1], ids[0]], None)
    assert [each.total for each in page.batches] == [0, 3, 0]
    assert [each.id for each in actors.engine.run(batches.page(unfinished=True)).batches] == ids[3::-1]
    assert [each.id for each in actors.engine.run(batches.look([ids[0], ids[3], 99]))] == [ids[3], ids[0]]


def test_a_job_knows_its_batch(actors: Actors) -> None:
    batch = begin(actors)
    (job,) = add(actors, batch)
    assert actors.engine.run(batches.of_job(job)) == batch
    assert actors.engine.run(batches.of_job(actors.add())) is None


def test_finished_batches_are_forgotten_after_a_while(actors: Actors) -> None:
    done, fresh, still_open = begin(actors), begin(actors), begin(actors)
    for batch in (done, fresh, still_open):
        add(actors, batch)
    cancel(actors, done)
    cancel(actors, fresh)
    close(actors, done)
    close(actors, fresh)
    past = "interval '31 days'" if actors.engine.name == "postgres" else "31 * 86400000000"
    actors.sql(f"update dibs.batches set finished_at = finished_at - {past} where id = {done}")
    while actors.engine.run(retention.old_batches()):
        pass
    assert [each.id for each in actors.engine.run(batches.page()).batches] == [still_open, fresh]
    assert actors.sql("select batch from dibs.parts order by id") == [(fresh,), (still_open,)]
