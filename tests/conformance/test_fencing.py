"""Every write-back names its lease: a stale one changes nothing, and its sender is told."""

from collections.abc import Callable

import pytest

from dibs.errors import LeaseLost
from dibs.job import Claimed, JobState
from dibs.lifecycle import SUCCESS, Back, Change, Done, Way, failure
from dibs.operations import jobs, workers
from dibs.operations.claims import Settle
from dibs.payload import encode
from tests.actors import Actors, Worker

BOOM = encode(failure(1, "boom"))
CHANGES: dict[str, Change] = {
    "succeed": Done(JobState.SUCCESSFUL, result=b"1"),
    "fail": Done(JobState.FAILED, failure=BOOM),
    "finish": Done(JobState.FAILED, hook_error="no hook"),
    "retry": Back(Way.RETRY, 60.0, BOOM),
    "snooze": Back(Way.SNOOZE, 60.0),
    "release": Back(Way.RELEASE),
    "finish later": Back(Way.FINISH, 60.0, BOOM),
}
LEAVES = {
    "succeed": "SUCCESSFUL",
    "fail": "FAILED",
    "finish": "FAILED",
    "retry": "RETRY",
    "snooze": "PENDING",
    "release": "PENDING",
    "finish later": "RETRY",
}
each_change = pytest.mark.parametrize("name", CHANGES)

RANDOM_BITS = 20


def operator_retry(actors: Actors, job: Claimed) -> None:
    actors.engine.run(jobs.cancel([job.id]))
    actors.engine.run(jobs.retry(job.id))


def hand_back(actors: Actors, worker: Worker) -> None:
    actors.engine.run(workers.hand_back([worker.id], None, ()))


def reclaimed(actors: Actors) -> tuple[Worker, Claimed, Claimed]:
    """A late owner, its stale lease, and the lease of the heir who holds the job now."""
    actors.add()
    late, heir = actors.worker(), actors.worker()
    (old,) = late.claim()
    actors.recover(late)
    actors.make_due()
    (new,) = heir.claim()
    return late, old, new


# A stale token


@each_change
def test_a_stale_lease_settles_nothing(actors: Actors, name: str) -> None:
    late, old, new = reclaimed(actors)
    before = actors.get(old.id)
    turn = late.settle(old, CHANGES[name])
    assert (turn.lost, turn.before) == ({old.id}, {})
    assert actors.get(old.id) == before
    assert not late.settle(new, CHANGES["succeed"]).lost


def test_a_stale_lease_writes_no_progress(actors: Actors) -> None:
    _, old, new = reclaimed(actors)
    actors.engine.run(jobs.progress(new.lease, b"1"))
    with pytest.raises(LeaseLost) as caught:
        actors.engine.run(jobs.progress(old.lease, b"2"))
    assert caught.value.job_id == old.id
    assert actors.get(old.id).progress == 1


def test_a_beat_learns_which_leases_are_lost(actors: Actors) -> None:
    _, old, new = reclaimed(actors)
    kept = actors.add()
    worker = actors.worker()
    (other,) = worker.claim()
    assert other.id == kept
    assert worker.beat(old.lease, new.lease, other.lease).lost == {old.lease}


def test_a_stale_lease_does_not_say_that_anybody_lives(actors: Actors) -> None:
    """A worker over HTTP beats by its leases."""
    _, old, new = reclaimed(actors)
    heir = actors.sql(f"select worker >> 20 from dibs.jobs where id = {new.id}")[0][0]
    before = actors.sql(f"select beat_at from dibs.workers where id = {heir}")
    with pytest.raises(LeaseLost) as caught:
        actors.engine.run(workers.beat_of(old.lease))
    assert caught.value.job_id == old.id
    assert actors.sql(f"select beat_at from dibs.workers where id = {heir}") == before
    actors.engine.run(workers.beat_of(new.lease))
    assert actors.sql(f"select beat_at from dibs.workers where id = {heir}") > before


@pytest.mark.parametrize("name", ["succeed", "fail"])
def test_only_the_lease_that_ended_a_job_is_told_that_it_did(actors: Actors, name: str) -> None:
    _, old, new = reclaimed(actors)
    heir = actors.worker()
    both = {old.lease, new.lease}
    assert actors.engine.run(workers.ended(both)) == frozenset()
    assert not heir.settle(new, CHANGES[name]).lost
    assert actors.engine.run(workers.ended(both)) == {new.lease}


@pytest.mark.parametrize(
    "change_hands",
    [
        lambda actors, worker, job: actors.recover(worker),
        lambda actors, worker, job: actors.engine.run(workers.recover_orphans()),
        lambda actors, worker, job: operator_retry(actors, job),
        lambda actors, worker, job: hand_back(actors, worker),
        lambda actors, worker, job: worker.settle(job, Back(Way.SNOOZE)),
        lambda actors, worker, job: worker.settle(job, Back(Way.RELEASE)),
        lambda actors, worker, job: worker.retry(job),
    ],
    ids=["recovered", "orphaned", "retried by a person", "handed back", "snoozed", "released", "retried"],
)
def test_the_next_claim_makes_a_lease_stale(
    actors: Actors, change_hands: Callable[[Actors, Worker, Claimed], object], request: pytest.FixtureRequest
) -> None:
    job_id, worker, heir = actors.add(), actors.worker(), actors.worker()
    (old,) = worker.claim()
    if "orphaned" in request.node.name:
        actors.sql(f"delete from dibs.workers where id = {worker.id}")
    change_hands(actors, worker, old)
    actors.make_due()
    (new,) = heir.claim()
    assert new.token != old.token
    assert worker.succeed(old).lost == {job_id}
    assert heir.beat(new.lease).lost == frozenset()


def test_a_cancelled_job_cannot_be_settled(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    actors.engine.run(jobs.cancel([job_id]))
    assert worker.beat(job.lease).lost == {job.lease}
    for change in CHANGES.values():
        assert worker.settle(job, change).lost == {job_id}
    assert actors.state(job_id) is JobState.CANCELLED


def test_the_right_token_on_the_wrong_job_is_refused(actors: Actors) -> None:
    (first, second), worker = actors.add_many(2), actors.worker()
    one, two = worker.claim(2)
    crossed = Claimed(*(two.token if name == "token" else getattr(one, name) for name in Claimed._fields))
    assert worker.succeed(crossed).lost == {first}
    assert (actors.state(first), actors.state(second)) == ("RUNNING", "RUNNING")


def test_one_stale_lease_does_not_spoil_a_turn(actors: Actors) -> None:
    _, old, new = reclaimed(actors)
    good = actors.add()
    (job,) = actors.worker().claim()
    settles = [Settle(lease, CHANGES["succeed"]) for lease in (old.lease, job.lease)]
    turn = actors.worker().turn(settles)
    assert (turn.lost, turn.before) == ({old.id}, {})
    assert (actors.state(good), actors.state(new.id)) == ("SUCCESSFUL", "RUNNING")


@pytest.mark.parametrize("stale", ["succeed", "fail", "retry"])
@pytest.mark.parametrize("fresh", ["succeed", "fail", "retry"])
def test_two_leases_of_one_job_in_a_turn_are_told_apart(actors: Actors, stale: str, fresh: str) -> None:
    """A worker that lost a job may have claimed it again before the first run of it ended."""
    late, old, new = reclaimed(actors)
    settles = [Settle(old.lease, CHANGES[stale]), Settle(new.lease, CHANGES[fresh])]
    turn = late.turn(settles)
    assert (turn.lost, turn.before) == (frozenset(), {})
    assert actors.state(old.id) == LEAVES[fresh]
    assert actors.sql("select count(*) from dibs.all_jobs") == [(1,)]


# Sent twice


@each_change
def test_a_settle_sent_twice_counts_once(actors: Actors, name: str) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    first = worker.settle(job, CHANGES[name])
    assert (first.lost, first.before) == (frozenset(), {})
    after = actors.get(job_id)
    turn = worker.settle(job, CHANGES[name])
    assert (turn.lost, turn.before) == (frozenset(), {job_id: LEAVES[name]})
    assert actors.get(job_id) == after


@each_change
def test_a_settled_job_takes_no_other_outcome(actors: Actors, name: str) -> None:
    """Its token may be kept, but it is not held any more."""
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    worker.settle(job, Back(Way.RELEASE))
    after = actors.get(job_id)
    assert worker.settle(job, CHANGES[name]).before == {job_id: "PENDING"}
    assert actors.get(job_id) == after


def test_a_settled_job_takes_no_progress(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    worker.settle(job, Back(Way.RELEASE))
    with pytest.raises(LeaseLost):
        actors.engine.run(jobs.progress(job.lease, b"1"))
    assert actors.get(job_id).progress is None


def test_a_settle_learns_what_another_one_with_the_same_lease_did(actors: Actors) -> None:
    """A commit whose answer was lost is followed by "failed": it learns that the job is done."""
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    worker.succeed(job, "done")
    assert worker.fail(job).before == {job_id: JobState.SUCCESSFUL}
    assert (actors.state(job_id), actors.get(job_id).result) == ("SUCCESSFUL", "done")


def test_a_release_of_a_retry_is_told_as_one(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.retry(*worker.claim())
    (job,) = worker.claim()
    worker.settle(job, Back(Way.RELEASE))
    assert worker.settle(job, Back(Way.RELEASE)).before == {job_id: JobState.RETRY}


@pytest.mark.parametrize("name", ["retry", "snooze", "release"])
def test_these_keep_the_token_until_the_next_claim(actors: Actors, name: str) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    worker.settle(job, CHANGES[name])
    assert actors.sql(f"select token from dibs.jobs where id = {job_id}") == [(job.token,)]
    actors.make_due()
    worker.claim()
    assert worker.settle(job, CHANGES[name]).lost == {job_id}


@pytest.mark.parametrize("way", ["recovered", "orphaned", "cancelled", "retried by a person", "handed back"])
def test_these_change_the_token(actors: Actors, way: str) -> None:
    """So a settle that comes afterwards was too late, and is not taken for one that was sent twice."""
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    match way:
        case "recovered":
            actors.recover(worker)
        case "orphaned":
            actors.sql(f"delete from dibs.workers where id = {worker.id}")
            actors.engine.run(workers.recover_orphans())
        case "cancelled":
            actors.engine.run(jobs.cancel([job_id]))
        case "retried by a person":
            operator_retry(actors, job)
        case "handed back":
            hand_back(actors, worker)
    for change in CHANGES.values():
        turn = worker.settle(job, change)
        assert (turn.lost, turn.before) == ({job_id}, {})


def test_a_failure_that_a_person_undid_came_too_late(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    worker.fail(job)
    actors.engine.run(jobs.retry(job_id))
    assert worker.fail(job).lost == {job_id}
    assert actors.state(job_id) is JobState.PENDING


def test_both_are_told_apart_in_one_turn(actors: Actors) -> None:
    _, old, _ = reclaimed(actors)
    twice, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    worker.succeed(job)
    turn = worker.turn([Settle(lease, CHANGES["succeed"]) for lease in (old.lease, job.lease)])
    assert (turn.lost, turn.before) == ({old.id}, {twice: JobState.SUCCESSFUL})


# The token


def test_a_token_is_not_the_number_of_the_attempt(actors: Actors) -> None:
    actors.add()
    worker = actors.worker()
    (first,) = worker.claim()
    worker.settle(first, Back(Way.SNOOZE))
    (second,) = worker.claim()
    assert first.attempts == second.attempts
    assert first.token != second.token


def test_the_counter_of_a_job_grows_with_each_claim(actors: Actors) -> None:
    job_id, worker = actors.add(max_attempts=100), actors.worker()
    counters = []
    for way in (Way.RETRY, Way.SNOOZE, Way.RELEASE):
        (job,) = worker.claim()
        counters.append(job.token >> RANDOM_BITS)
        worker.settle(job, Back(way))
    (job,) = worker.claim()
    operator_retry(actors, job)
    counters += [job.token >> RANDOM_BITS, worker.claim()[0].token >> RANDOM_BITS]
    assert counters == sorted(set(counters))
    assert job.id == job_id


def test_a_token_has_random_bits(actors: Actors) -> None:
    """A standby that lagged hands out the same counter again; it must not be the same token."""
    actors.add()
    worker, tokens = actors.worker(), []
    for _ in range(20):
        (job,) = worker.claim()
        tokens.append(job.token)
        worker.settle(job, Back(Way.RELEASE))
    assert len({token % (1 << RANDOM_BITS) for token in tokens}) > 15
    assert all(0 < token < 2**63 for token in tokens)


# Many at once


def test_a_settle_of_many_touches_nobody_in_between(actors: Actors) -> None:
    ours = actors.add_many(2)
    waits = actors.add(queue="other")
    ours += actors.add_many(2)
    worker = actors.worker()
    settles = [Settle(job.lease, SUCCESS) for job in worker.claim(4)]
    assert not worker.turn(settles, 1, "nobody's").lost
    assert [actors.state(job) for job in ours] == ["SUCCESSFUL"] * 4
    assert actors.state(waits) == "PENDING"


def test_a_settle_of_many_leaves_the_heirs_job_among_them(actors: Actors) -> None:
    ids = actors.add_many(3)
    late, heir = actors.worker(), actors.worker()
    first, lost, last = late.claim(3)
    operator_retry(actors, lost)
    (new,) = heir.claim()
    turn = late.turn([Settle(job.lease, SUCCESS) for job in (first, lost, last)], 1, "nobody's")
    assert turn.lost == {new.id}
    assert [actors.state(job) for job in ids] == ["SUCCESSFUL", "RUNNING", "SUCCESSFUL"]
    assert not heir.succeed(new).lost
