"""Claiming: one owner, in order, one attempt at a time."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs.errors import InvalidOption
from dibs.job import Claimed, JobState, WorkerId
from dibs.ladder import START
from dibs.lifecycle import Back, Done, Way, failure
from dibs.operations import claims
from dibs.operations.claims import Settle
from dibs.payload import encode
from tests.actors import Actors, Worker
from tests.conformance.elsewhere import another, elsewhere, rolled_back, through, until_somebody_waits
from tests.conformance.kinds import on_servers

PLAIN, LAST = range(10), range(10, 20)
FINISH = Back(Way.FINISH, 0.0, encode(failure(1, "boom")))


def ids(claimed: list[Claimed]) -> list[int]:
    return [job.id for job in claimed]


def make_suspects(actors: Actors, count: int = 1, **options: object) -> list[int]:
    """Jobs whose worker died."""
    made, victim = actors.add_many(count, **options), actors.worker()
    victim.claim(count, str(options.get("queue", "default")))
    actors.recover(victim)
    actors.make_due()
    return made


# One owner


def test_a_job_has_one_owner(actors: Actors) -> None:
    job_id = actors.add(payload={"n": 1})
    first, second = actors.worker(), actors.worker()
    (job,) = first.claim(10)
    assert (job.id, job.attempts) == (job_id, 1)
    assert second.claim(10) == []
    assert actors.state(job_id) is JobState.RUNNING


def test_a_late_owner_cannot_write(actors: Actors) -> None:
    job_id = actors.add()
    late, heir = actors.worker(), actors.worker()
    (old,) = late.claim()
    actors.recover(late)
    actors.make_due()
    (new,) = heir.claim()
    assert late.succeed(old).lost == {job_id}
    assert actors.state(job_id) is JobState.RUNNING
    assert not heir.succeed(new).lost
    assert actors.state(job_id) is JobState.SUCCESSFUL


def test_a_claim_hands_out_what_a_worker_needs(actors: Actors) -> None:
    job_id = actors.add("mail", {"to": "ann"}, queue="q", priority=9, max_attempts=7)
    (job,) = actors.worker().claim(1, "q")
    assert (job.id, job.type, job.queue, job.payload) == (job_id, "mail", "q", job.payload)
    assert (job.attempts, job.max_attempts, job.rank, job.crashes, job.finishing) == (1, 7, 0, 0, 0)
    assert actors.get(job_id).payload == {"to": "ann"}


def test_claimers_at_once_share_the_jobs(actors: Actors) -> None:
    wanted = actors.add_many(60)

    def claim_all(worker: Worker) -> list[int]:
        got: list[int] = []
        while some := worker.claim(3):
            got += ids(some)
        return got

    engines = [another(actors.engine) for _ in range(3)]
    workers = [Worker(engine, actors.worker().id, "") for engine in engines]
    with ThreadPoolExecutor(3) as threads:
        got = Counter(job_id for claimed in threads.map(claim_all, workers) for job_id in claimed)
    for engine in engines:
        engine.close()
    assert got == Counter(wanted)


def test_a_worker_without_a_row_claims_nothing(actors: Actors) -> None:
    job_id = actors.add()
    assert Worker(actors.engine, WorkerId(4711), "stranger").claim() == []
    assert (actors.state(job_id), actors.get(job_id).attempts) == (JobState.PENDING, 0)


def test_what_was_found_and_not_claimed_is_counted(actors: Actors) -> None:
    """Where dead rows linger, a claim that comes short must not be taken for the end of what waits."""
    actors.add_many(3)
    stranger = claims.Want(WorkerId(4711), 1, 2, [("default", 4, START.at, START.id)])
    turn = actors.engine.run(claims.turn(stranger))
    assert (turn.claimed, turn.picked) == ([], 2 if actors.engine.can.cursor else 0)


def test_a_worker_that_was_declared_dead_claims_nothing(actors: Actors) -> None:
    actors.add()
    worker = actors.worker()
    actors.recover(worker)
    assert worker.claim() == []


def test_a_claim_that_is_rolled_back_never_was(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    with rolled_back(actors.engine) as other:
        assert through(worker, other).claim()
    (job,) = worker.claim()
    assert (job.id, job.attempts) == (job_id, 1)


@on_servers
def test_a_claim_passes_by_what_somebody_else_is_claiming(actors: Actors) -> None:
    first, second = actors.add_many(2)
    one, two = actors.worker(), actors.worker()
    with elsewhere(actors.engine) as other:
        assert ids(through(one, other).claim()) == [first]
        assert ids(two.claim(10)) == [second]


# How many


def test_a_claim_takes_no_more_than_its_limit(actors: Actors) -> None:
    wanted, worker = actors.add_many(5), actors.worker()
    assert [ids(worker.claim(2)) for _ in range(4)] == [wanted[:2], wanted[2:4], wanted[4:], []]


def test_the_limit_holds_over_all_ranges(actors: Actors) -> None:
    for queue in ("a", "b"):
        actors.add_many(2, queue=queue, priority=9)
        actors.add_many(2, queue=queue, priority=1)
    worker = actors.worker()
    assert [len(worker.claim(3, "a", "b")) for _ in range(4)] == [3, 3, 2, 0]


@pytest.mark.parametrize("limit", [0, -1, claims.MAX_CLAIM + 1])
def test_a_claim_has_a_sensible_limit(actors: Actors, limit: int) -> None:
    with pytest.raises(InvalidOption, match="limit"):
        actors.worker().claim(limit)


def test_a_claim_without_ranges_takes_nothing(actors: Actors) -> None:
    actors.add()
    assert actors.worker().claim(ranks=[]) == []


# In which order


def test_queues_come_in_the_order_given(actors: Actors) -> None:
    b, a = actors.add(queue="b", priority=9), actors.add(queue="a", priority=0)
    worker = actors.worker()
    assert ids(worker.claim(2, "a", "b")) == [a, b]


def test_only_the_queues_named_are_served(actors: Actors) -> None:
    actors.add(queue="other")
    job_id = actors.add(queue="mine")
    assert ids(actors.worker().claim(10, "mine")) == [job_id]


def test_higher_priority_comes_first(actors: Actors) -> None:
    made = [actors.add(priority=priority) for priority in (0, 5, 9, 4)]
    assert ids(actors.worker().claim(4)) == [made[2], made[1], made[3], made[0]]


def test_due_at_the_same_time_the_older_comes_first(actors: Actors) -> None:
    made = actors.add_many(20)
    assert ids(actors.worker().claim(20)) == made


def test_ranges_come_in_the_order_given(actors: Actors) -> None:
    low, high = actors.add(priority=0), actors.add(priority=9)
    assert ids(actors.worker().claim(2, ranks=[9, 0])) == [low, high]


def test_within_a_priority_the_earlier_due_comes_first(actors: Actors) -> None:
    first, second = actors.add_many(2)
    worker = actors.worker()
    worker.retry(*worker.claim())
    assert ids(worker.claim(2)) == [second, first]


def test_a_claim_starts_after_its_place(actors: Actors) -> None:
    if not actors.engine.can.cursor:
        return
    wanted, worker = actors.add_many(3), actors.worker()
    first = worker.claim()[0]
    want = claims.Want(worker.id, 9, 10, [("default", first.rank, first.run_at, wanted[1])])
    assert ids(actors.engine.run(claims.turn(want)).claimed) == [wanted[2]]


# When


def test_a_job_is_claimed_when_it_is_due(actors: Actors) -> None:
    job_id, worker = actors.add(delay=60), actors.worker()
    assert worker.claim() == []
    actors.make_due()
    assert ids(worker.claim()) == [job_id]


def test_the_next_due_time_is_known(actors: Actors) -> None:
    def due(*queues: str) -> float | None:
        return actors.engine.run(claims.next_due(queues))

    assert due("a", "b") is None
    actors.add(queue="a", delay=60, priority=9)
    actors.add(queue="a", delay=30, priority=0)
    assert due("a", "b") == pytest.approx(30, abs=5)
    actors.add(queue="b")
    assert (due("a", "b"), due("c")) == (0, None)
    actors.pause("b")
    assert due("a", "b") == pytest.approx(30, abs=5)
    actors.worker().claim(10, "b")
    assert due("b") is None


def test_what_could_be_claimed_is_counted(actors: Actors) -> None:
    def available(*queues: str, most: int = 100) -> int:
        return actors.engine.run(claims.available(queues, most))

    actors.add_many(3, queue="a")
    actors.add_many(2, queue="b", max_attempts=1)
    actors.add(queue="a", delay=60)
    assert (available("a"), available("a", "b"), available("a", "b", most=4), available()) == (3, 5, 4, 0)
    actors.worker().claim(1, "a")
    actors.pause("b")
    assert available("a", "b") == 2


def test_a_turn_tells_the_databases_clock(actors: Actors) -> None:
    turn = actors.worker().turn([])
    actors.add()
    (job,) = actors.worker().claim()
    assert turn.clock <= job.run_at


# Settling first


def test_a_turn_settles_before_it_claims(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    turn = worker.turn([Settle(job.lease, Back(Way.RELEASE))])
    assert ids(turn.claimed) == [job_id]
    assert not turn.lost


def test_a_turn_settles_all_kinds_at_once(actors: Actors) -> None:
    made, worker = actors.add_many(5), actors.worker()
    kinds = [Back(Way.RETRY, 60.0), Back(Way.SNOOZE, 60.0), Back(Way.RELEASE), FINISH]
    settles = [Settle(job.lease, kind) for job, kind in zip(worker.claim(4), kinds, strict=True)]
    turn = worker.turn(settles[::-1], 10, ranks=PLAIN)
    assert (turn.lost, turn.before) == (frozenset(), {})
    assert ids(turn.claimed) == [made[2], made[4]]
    assert [actors.state(job_id) for job_id in made] == ["RETRY", "PENDING", "RUNNING", "RETRY", "RUNNING"]


def test_a_turn_may_only_settle(actors: Actors) -> None:
    done, waiting = actors.add_many(2)
    worker = actors.worker()
    turn = worker.succeed(*worker.claim())
    assert turn.claimed == []
    assert (actors.state(done), actors.state(waiting)) == ("SUCCESSFUL", "PENDING")


def test_a_worker_without_a_row_can_still_settle_what_it_holds(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    actors.sql(f"delete from dibs.workers where id = {worker.id}")
    assert not worker.succeed(job).lost
    assert actors.state(job_id) is JobState.SUCCESSFUL


def test_the_same_settle_twice_in_a_turn_counts_once(actors: Actors) -> None:
    (first, second), worker = actors.add_many(2), actors.worker()
    done, back = worker.claim(2)
    settles = [Settle(done.lease, Done(JobState.SUCCESSFUL)), Settle(back.lease, Back(Way.RETRY))] * 2
    turn = actors.engine.run(claims.settle(settles))
    assert not turn.lost
    assert (actors.state(first), actors.state(second)) == ("SUCCESSFUL", "RETRY")
    assert actors.sql("select count(*) from dibs.history") == [(1,)]


# Ways back


def test_a_failed_attempt_waits_for_the_next(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.retry(*worker.claim(), delay=60)
    job = actors.get(job_id)
    assert (job.state, job.attempts, job.worker, job.error) == (JobState.RETRY, 1, None, "boom")
    assert worker.claim() == []
    actors.make_due()
    assert worker.claim()[0].attempts == 2


def test_a_snooze_uses_no_attempt(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.retry(*worker.claim())
    worker.settle(worker.claim()[0], Back(Way.SNOOZE, 60.0))
    job = actors.get(job_id)
    assert (job.state, job.attempts, job.worker) == (JobState.PENDING, 1, None)
    assert worker.claim() == []
    actors.make_due()
    assert worker.claim()[0].attempts == 2


@pytest.mark.parametrize("state", ["PENDING", "RETRY"])
def test_a_release_leaves_the_job_as_it_was(actors: Actors, state: str) -> None:
    job_id, worker = actors.add(), actors.worker()
    if state == "RETRY":
        worker.retry(*worker.claim())
    before = actors.get(job_id)
    (job,) = worker.claim()
    worker.settle(job, Back(Way.RELEASE))
    after = actors.get(job_id)
    assert (after.state, after.attempts, after.run_at, after.failures) == (
        before.state,
        before.attempts,
        before.run_at,
        before.failures,
    )
    assert (worker.claim()[0].rank, after.worker) == (job.rank, None)


# Last attempts


def test_a_job_on_its_last_attempt_comes_only_when_asked_for(actors: Actors) -> None:
    last, plain = actors.add(max_attempts=1), actors.add(max_attempts=2)
    worker = actors.worker()
    assert ids(worker.claim(10, ranks=PLAIN)) == [plain]
    assert ids(worker.claim(10, ranks=LAST)) == [last]


def test_a_retry_into_the_last_attempt_changes_class(actors: Actors) -> None:
    job_id, worker = actors.add(max_attempts=3, priority=7), actors.worker()
    ranks = []
    for _ in range(3):
        (job,) = worker.claim()
        ranks.append(job.rank)
        worker.retry(job)
    assert ranks == [2, 2, 12]
    assert actors.get(job_id).priority == 7


def test_a_snooze_keeps_the_class(actors: Actors) -> None:
    actors.add(max_attempts=2)
    worker = actors.worker()
    worker.settle(worker.claim()[0], Back(Way.SNOOZE))
    (job,) = worker.claim(ranks=PLAIN)
    worker.retry(job)
    worker.settle(worker.claim(ranks=LAST)[0], Back(Way.SNOOZE))
    assert worker.claim(ranks=PLAIN) == []
    assert worker.claim(ranks=LAST)[0].attempts == 2


# Suspects


def test_a_claim_takes_one_suspect_at_most(actors: Actors) -> None:
    suspects, plain = make_suspects(actors, 3), actors.add()
    worker = actors.worker()
    first = worker.claim(10)
    assert [job.suspect for job in first] == [True, False]
    assert first[1].id == plain
    assert first[0].id in suspects
    assert [len(worker.claim(10)) for _ in range(3)] == [1, 1, 0]


def test_suspects_of_several_ranges_come_one_at_a_time(actors: Actors) -> None:
    make_suspects(actors, 2, queue="a", priority=9)
    make_suspects(actors, 2, queue="b", priority=1)
    worker = actors.worker()
    assert [len(worker.claim(10, "a", "b")) for _ in range(5)] == [1, 1, 1, 1, 0]


def test_a_worker_busy_with_a_suspect_takes_no_other(actors: Actors) -> None:
    make_suspects(actors, 2)
    plain = actors.add()
    assert ids(actors.worker().claim(10, suspects=0)) == [plain]


def test_a_suspect_counts_in_the_limit(actors: Actors) -> None:
    (suspect,) = make_suspects(actors)
    actors.add_many(2)
    worker = actors.worker()
    assert ids(worker.claim(1)) == [suspect]
    assert len(worker.claim(2)) == 2


def test_an_outcome_clears_a_suspect(actors: Actors) -> None:
    (job_id,) = make_suspects(actors)
    worker = actors.worker()
    worker.retry(*worker.claim())
    (job,) = worker.claim(suspects=0)
    assert (job.id, job.suspect, job.crashes) == (job_id, False, 1)


def test_a_released_suspect_is_one_still(actors: Actors) -> None:
    make_suspects(actors)
    worker = actors.worker()
    worker.settle(worker.claim()[0], Back(Way.RELEASE))
    assert worker.claim(suspects=0) == []
    assert worker.claim()[0].suspect


# Left alone


def test_unknown_types_are_left_untouched(actors: Actors) -> None:
    (suspect,) = make_suspects(actors)
    unknown, known = actors.add("new"), actors.add("old")
    worker = actors.worker()
    assert ids(worker.claim(10, unknown=["new", "task"])) == [known]
    assert (actors.state(unknown), actors.get(unknown).attempts) == (JobState.PENDING, 0)
    assert actors.state(suspect) is JobState.RETRY
    assert sorted(ids(worker.claim(10, unknown=["old"]))) == [suspect, unknown]


def test_unknown_types_do_not_hide_those_behind_them(actors: Actors) -> None:
    for _ in range(5):
        actors.add("new")
    known = actors.add("old")
    assert ids(actors.worker().claim(1, unknown=["new"])) == [known]


def test_a_paused_queue_is_left_alone(actors: Actors) -> None:
    (suspect,) = make_suspects(actors, queue="a")
    paused, other = actors.add(queue="a"), actors.add(queue="b")
    actors.pause("a")
    worker = actors.worker()
    turn = worker.turn([], 10, "a", "b")
    assert (ids(turn.claimed), turn.paused) == ([other], {"a"})
    actors.resume("a")
    turn = worker.turn([], 10, "a", "b")
    assert (ids(turn.claimed), turn.paused) == ([suspect, paused], frozenset())


def test_what_runs_in_a_paused_queue_can_be_settled(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    actors.pause()
    assert not worker.succeed(job).lost
    assert actors.state(job_id) is JobState.SUCCESSFUL


# Finishing


def test_a_job_to_be_finished_is_claimed_without_an_attempt(actors: Actors) -> None:
    job_id, worker = actors.add(max_attempts=5), actors.worker()
    worker.settle(worker.claim()[0], FINISH)
    assert actors.state(job_id) is JobState.RETRY
    counts = []
    for _ in range(3):
        (job,) = worker.claim(ranks=LAST)
        counts.append((job.attempts, job.finishing))
        worker.settle(job, FINISH)
    assert counts == [(1, 2), (1, 3), (1, 4)]


def test_handing_back_a_job_to_be_finished_does_not_count(actors: Actors) -> None:
    actors.add()
    worker = actors.worker()
    worker.settle(worker.claim()[0], FINISH)
    (job,) = worker.claim()
    worker.settle(job, Back(Way.RELEASE))
    (again,) = worker.claim()
    assert (again.attempts, again.finishing) == (job.attempts, job.finishing) == (1, 2)


def test_a_finished_job_keeps_why_its_hook_failed(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.settle(worker.claim()[0], FINISH)
    worker.settle(worker.claim()[0], Done(JobState.FAILED, hook_error='no "hook"\n'))
    assert (actors.state(job_id), actors.get(job_id).error) == (JobState.FAILED, "boom")
    assert actors.sql("select hook_error from dibs.dead") == [('no "hook"\n',)]


# What it costs


@on_servers
def test_a_claim_is_a_hot_update(actors: Actors) -> None:
    actors.add_many(10)
    worker = actors.worker()
    with elsewhere(actors.engine) as other:
        assert len(through(worker, other).claim(10)) == 10
        assert other.sql("select pg_stat_get_xact_tuples_hot_updated('dibs.jobs'::regclass)") == [(10,)]


@on_servers
def test_a_claim_that_finds_nothing_writes_nothing(actors: Actors) -> None:
    worker = actors.worker()
    with elsewhere(actors.engine) as other:
        assert through(worker, other).claim(10) == []
        assert other.sql("select pg_current_xact_id_if_assigned()::text") == [(None,)]


@on_servers
def test_a_turn_that_waits_for_its_own_job_has_picked_nothing_yet(actors: Actors) -> None:
    """Else two turns could each have what the other waits for, and deadlock."""
    worker, own = actors.worker(), actors.add()
    (job,) = worker.claim()
    waiting = actors.add()
    with ThreadPoolExecutor(1) as thread:
        with elsewhere(actors.engine) as other:
            other.sql(f"select from dibs.jobs where id = {own} for update")
            turn = thread.submit(worker.turn, [Settle(job.lease, Done(JobState.SUCCESSFUL))])
            until_somebody_waits(actors)
            assert ids(actors.worker().claim()) == [waiting]
        assert turn.result().claimed == []
    assert actors.state(own) is JobState.SUCCESSFUL
