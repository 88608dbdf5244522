"""Dead workers: who may say so, what becomes of their jobs, and what a living worker hands back."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest

from dibs import lifecycle
from dibs.job import JobState, WorkerId
from dibs.lifecycle import Back, Way
from dibs.operations import jobs, workers
from dibs.operations.workers import NOTHING, Recovered
from tests.actors import Actors, Worker
from tests.conformance.elsewhere import another, elsewhere, through, until_somebody_waits
from tests.conformance.kinds import on_servers

LEASE, BEAT = 15.0, 3.0  # as the actors' workers have it


def recover(actors: Actors, judge: Worker | None = None, silent: Sequence[tuple[WorkerId, Any]] = ()) -> Recovered:
    return actors.engine.run(workers.recover(judge.id if judge else None, silent=silent))


def dead_worker(actors: Actors, count: int = 1, **options: Any) -> tuple[Worker, list[int]]:
    """A worker that holds jobs and has not beaten for longer than its lease."""
    ids, worker = actors.add_many(count, **options), actors.worker()
    assert len(worker.claim(count)) == count
    actors.age(worker, LEASE + 1)
    return worker, list(ids)


def careful_judge(actors: Actors) -> Worker:
    """A worker whose beats have gone through for longer than a lease."""
    judge = actors.worker()
    actors.trust(judge, LEASE + 1)
    return judge


def exists(actors: Actors, worker: Worker) -> bool:
    return worker.id in [row.id for row in actors.engine.run(workers.list_workers())]


def crash(actors: Actors) -> lifecycle.Claimed:
    """Somebody claims the only job there is and dies."""
    victim = actors.worker()
    (job,) = victim.claim()
    actors.recover(victim)
    actors.make_due()
    return job


# Careful judges


def test_a_steady_judge_recovers_the_dead(actors: Actors) -> None:
    dead, ids = dead_worker(actors, 2)
    assert recover(actors, careful_judge(actors)) == Recovered(dict.fromkeys(ids, dead.id), {dead.id})
    assert {actors.state(job_id) for job_id in ids} == {JobState.RETRY}
    assert not exists(actors, dead)


def test_a_new_worker_judges_nobody(actors: Actors) -> None:
    dead, (job_id,) = dead_worker(actors)
    assert recover(actors, actors.worker()) == NOTHING
    assert actors.state(job_id) is JobState.RUNNING
    assert exists(actors, dead)


@pytest.mark.parametrize("steady, judges", [(LEASE - 1, False), (LEASE + 1, True)])
def test_a_judge_has_to_be_steady_for_a_whole_lease(actors: Actors, steady: float, judges: bool) -> None:
    dead_worker(actors)
    judge = actors.worker()
    actors.trust(judge, steady)
    assert bool(recover(actors, judge).jobs) is judges


@pytest.mark.parametrize("gap, judges", [(BEAT, True), (2 * BEAT + 1, False)])
def test_a_gap_by_the_databases_clock_starts_trust_anew(actors: Actors, gap: float, judges: bool) -> None:
    dead_worker(actors)
    judge = careful_judge(actors)
    actors.trust(judge, gap)
    actors.age(judge, gap)
    judge.beat()
    assert bool(recover(actors, judge).jobs) is judges


def test_a_gap_by_the_judges_own_clock_starts_trust_anew(actors: Actors) -> None:
    dead_worker(actors)
    judge = careful_judge(actors)
    judge.beat(steady=False)
    assert recover(actors, judge) == NOTHING
    judge.beat()
    assert recover(actors, judge) == NOTHING


def test_a_clock_that_went_back_starts_trust_anew(actors: Actors) -> None:
    dead_worker(actors)
    judge = careful_judge(actors)
    actors.age(judge, -1)
    judge.beat()
    assert recover(actors, judge) == NOTHING


@pytest.mark.parametrize("seconds", [2 * BEAT + 1, -(2 * BEAT + 1)], ids=["past", "future"])
def test_a_judge_whose_own_beat_is_not_of_now_judges_nobody(actors: Actors, seconds: float) -> None:
    dead_worker(actors)
    judge = careful_judge(actors)
    actors.age(judge, seconds)
    actors.trust(judge, 60)
    assert recover(actors, judge) == NOTHING


def test_a_judge_who_is_dead_itself_judges_nobody(actors: Actors) -> None:
    dead_worker(actors)
    judge = careful_judge(actors)
    actors.recover(judge)
    assert recover(actors, judge) == NOTHING
    assert recover(actors) == NOTHING


@pytest.mark.parametrize(
    "seconds, dead", [(LEASE / 2, False), (LEASE + 1, True), (-LEASE / 2, False), (-2 * LEASE, True)]
)
def test_a_beat_a_lease_away_from_now_is_dead(actors: Actors, seconds: float, dead: bool) -> None:
    """In the future as well as in the past: a clock step must not make anybody immortal."""
    worker = actors.worker()
    actors.age(worker, seconds)
    assert recover(actors, careful_judge(actors)).workers == ({worker.id} if dead else frozenset())
    assert exists(actors, worker) is not dead


def test_every_worker_has_a_lease_of_its_own(actors: Actors) -> None:
    short, long = actors.worker(lease=2), actors.worker(lease=60)
    actors.age(short, 3)
    actors.age(long, 30)
    assert recover(actors, careful_judge(actors)).workers == {short.id}


def test_a_beat_keeps_a_worker_alive(actors: Actors) -> None:
    worker, (job_id,) = dead_worker(actors)
    worker.beat()
    assert recover(actors, careful_judge(actors)) == NOTHING
    assert actors.state(job_id) is JobState.RUNNING


def test_a_judge_does_not_judge_the_living(actors: Actors) -> None:
    dead, (lost,) = dead_worker(actors)
    held, living = actors.add(), actors.worker()
    (job,) = living.claim()
    assert recover(actors, careful_judge(actors)) == Recovered({lost: dead.id}, {dead.id})
    assert living.beat(job.lease).lost == frozenset()
    assert actors.state(held) is JobState.RUNNING


# Known, silent, orphaned


def test_a_reaped_worker_is_recovered_at_once(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.claim()
    assert actors.recover(worker) == Recovered({job_id: worker.id}, {worker.id})
    assert actors.recover(worker) == NOTHING


def test_only_those_silent_for_so_many_leases_are_noted(actors: Actors) -> None:
    one, two, future = actors.worker(), actors.worker(), actors.worker()
    actors.age(one, 1.5 * LEASE)
    actors.age(two, 2.5 * LEASE)
    actors.age(future, -2.5 * LEASE)
    assert {worker for worker, _ in actors.engine.run(workers.silent(2))} == {two.id, future.id}
    assert len(actors.engine.run(workers.silent(1))) == 3


def test_those_noted_are_recovered_when_they_are_silent_still(actors: Actors) -> None:
    dead, ids = dead_worker(actors)
    noted = actors.engine.run(workers.silent(1))
    assert recover(actors, silent=noted) == Recovered({ids[0]: dead.id}, {dead.id})


def test_those_noted_are_left_alone_when_they_have_beaten_since(actors: Actors) -> None:
    worker, (job_id,) = dead_worker(actors)
    noted = actors.engine.run(workers.silent(1))
    worker.beat()
    actors.age(worker, 10 * LEASE)
    assert recover(actors, silent=noted) == NOTHING
    assert actors.state(job_id) is JobState.RUNNING


def test_jobs_whose_worker_has_no_row_are_freed(actors: Actors) -> None:
    (orphan, held), (gone, here) = actors.add_many(2), (actors.worker(), actors.worker())
    gone.claim()
    here.claim()
    actors.sql(f"delete from dibs.workers where id = {gone.id}")
    assert actors.engine.run(workers.recover_orphans()) == 1
    assert actors.engine.run(workers.recover_orphans()) == 0
    job = actors.get(orphan)
    assert (job.state, job.attempts, job.error) == (JobState.RETRY, 1, "the worker vanished")
    assert job.failures[0]["worker"] == gone.name
    assert actors.state(held) is JobState.RUNNING
    (heir,) = actors.worker().claim()
    assert (heir.id, heir.suspect, heir.crashes) == (orphan, True, 1)


def test_an_orphan_on_its_last_attempt_is_to_be_finished(actors: Actors) -> None:
    job_id, worker = actors.add(max_attempts=1), actors.worker()
    worker.claim()
    actors.sql(f"delete from dibs.workers where id = {worker.id}")
    actors.engine.run(workers.recover_orphans())
    assert actors.state(job_id) is JobState.RETRY
    assert actors.worker().claim()[0].finishing == 2


# What becomes of the jobs


def test_a_recovered_job_waits_for_another_worker(actors: Actors) -> None:
    job_id, worker = actors.add(priority=8), actors.worker()
    worker.claim()
    actors.recover(worker)
    job = actors.get(job_id)
    assert (job.state, job.attempts, job.priority, job.worker) == (JobState.RETRY, 1, 8, None)
    assert job.started_at <= job.run_at  # type: ignore[operator]  # it has both
    (failure,) = job.failures
    assert (failure["attempt"], failure["error"], failure["worker"]) == (1, "the worker died", worker.name)
    assert failure["started_at"] <= failure["finished_at"]


def test_recovered_jobs_are_due_within_a_second(actors: Actors) -> None:
    """Spread a little, so that they do not come back all at once."""
    dead, ids = dead_worker(actors, 10)
    actors.recover(dead)
    now = actors.worker().turn([], ranks=[]).clock
    times = [row[0] for row in actors.sql("select run_at from dibs.jobs")]
    second = timedelta(seconds=1) if actors.engine.can.cursor else 1_000_000
    assert all(time - now < second for time in times)
    assert len(set(times)) > 1
    assert len(times) == len(ids)


def test_a_crash_counts_as_an_attempt(actors: Actors) -> None:
    actors.add()
    first, second = crash(actors), crash(actors)
    assert [(job.attempts, job.crashes, job.finishing) for job in (first, second)] == [(1, 0, 0), (2, 1, 0)]


def test_a_recovered_job_is_a_suspect(actors: Actors) -> None:
    job_id = actors.add(priority=8)
    crash(actors)
    worker = actors.worker()
    assert worker.claim(suspects=0) == []
    (job,) = worker.claim()
    assert (job.id, job.rank, job.suspect) == (job_id, 21, True)


@pytest.mark.parametrize("attempts", [1, 2])
def test_recovery_never_writes_failed(actors: Actors, attempts: int) -> None:
    """The last step is claimed work: whoever claims it finishes the job."""
    job_id = actors.add(max_attempts=attempts)
    for _ in range(attempts):
        assert crash(actors).finishing == 0
    assert actors.state(job_id) is JobState.RETRY
    (job,) = actors.worker().claim()
    assert (job.id, job.attempts, job.finishing, job.crashes) == (job_id, attempts, 2, attempts)
    assert not lifecycle.hook_is_spent(job)


def test_a_hook_that_kills_its_worker_is_tried_ten_times(actors: Actors) -> None:
    job_id = actors.add(max_attempts=1)
    crash(actors)
    tries = [crash(actors) for _ in range(lifecycle.HOOK_TRIES)]
    assert not any(lifecycle.hook_is_spent(job) for job in tries)
    assert lifecycle.hook_is_spent(crash(actors))
    assert (actors.state(job_id), actors.get(job_id).attempts) == (JobState.RETRY, 1)


def test_a_hook_that_raises_is_tried_ten_times(actors: Actors) -> None:
    actors.add(max_attempts=1)
    worker = actors.worker()
    worker.settle(worker.claim()[0], Back(Way.FINISH))
    for _ in range(lifecycle.HOOK_TRIES):
        (job,) = worker.claim()
        assert not lifecycle.hook_is_spent(job)
        worker.settle(job, Back(Way.FINISH))
    assert lifecycle.hook_is_spent(worker.claim()[0])


def test_a_hook_that_kills_its_worker_waits_longer_each_time(actors: Actors) -> None:
    job_id = actors.add(max_attempts=1)
    crash(actors)
    waits = []
    for _ in range(3):
        victim = actors.worker()
        victim.claim()
        actors.recover(victim)
        job = actors.get(job_id)
        waits.append((job.run_at - job.started_at).total_seconds())  # type: ignore[operator]  # it has both
        actors.make_due()
    assert [int(wait / 4) for wait in waits] == [1, 2, 4]


def test_crashes_are_among_the_last_ten_failures(actors: Actors) -> None:
    job_id, worker = actors.add(max_attempts=100), actors.worker()
    for n in range(10):
        worker.retry(*worker.claim(), error=str(n))
    crash(actors)
    assert [failure["error"] for failure in actors.get(job_id).failures] == [*map(str, range(1, 10)), "the worker died"]


def test_a_recovered_job_keeps_its_progress(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    actors.engine.run(jobs.progress(job.lease, b"42"))
    actors.recover(worker)
    assert actors.get(job_id).progress == 42


# Several at once


def test_judges_at_once_recover_each_job_once(actors: Actors) -> None:
    dead, ids = dead_worker(actors, 20)
    engines = [another(actors.engine) for _ in range(3)]
    judges = [Worker(engine, careful_judge(actors).id, "") for engine in engines]
    for judge in judges:
        judge.beat()
    start = Barrier(3)

    def judge_now(judge: Worker) -> Recovered:
        start.wait()
        return judge.engine.run(workers.recover(judge.id))

    with ThreadPoolExecutor(3) as threads:
        verdicts = list(threads.map(judge_now, judges))
    for engine in engines:
        engine.close()
    assert sorted(job_id for verdict in verdicts for job_id in verdict.jobs) == ids
    assert [verdict.workers for verdict in verdicts if verdict.workers] == [{dead.id}]
    assert {actors.get(job_id).attempts for job_id in ids} == {1}


@on_servers
def test_a_judge_does_not_wait_for_another(actors: Actors) -> None:
    dead, (job_id,) = dead_worker(actors)
    judge = careful_judge(actors)
    with elsewhere(actors.engine) as other:
        assert recover(other, careful_judge(actors)).jobs == {job_id: dead.id}
        assert recover(actors, judge) == NOTHING
    assert recover(actors, judge) == NOTHING


@on_servers
def test_a_job_that_is_being_committed_is_passed_by_and_its_worker_kept(actors: Actors) -> None:
    worker, (committing, other_id) = dead_worker(actors, 2)
    with elsewhere(actors.engine) as other:
        other.sql(f"select from dibs.jobs where id = {committing} for update")
        assert actors.recover(worker) == Recovered({other_id: worker.id}, frozenset())
        assert exists(actors, worker)
        assert actors.state(committing) is JobState.RUNNING
    assert actors.recover(worker) == Recovered({committing: worker.id}, {worker.id})


@on_servers
def test_a_job_that_commits_its_own_success_in_time_is_not_recovered(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    with elsewhere(actors.engine) as other:
        assert not through(worker, other).succeed(job).lost
        assert actors.recover(worker) == NOTHING
    assert actors.state(job_id) is JobState.SUCCESSFUL
    assert actors.recover(worker) == Recovered({}, {worker.id})


@on_servers
def test_a_worker_whose_claim_is_in_flight_is_passed_by(actors: Actors) -> None:
    """Else its row would go, and the claim, once committed, would belong to nobody."""
    job_id, worker = actors.add(), actors.worker()
    with elsewhere(actors.engine) as other:
        assert through(worker, other).claim()
        assert actors.recover(worker) == NOTHING
    assert exists(actors, worker)
    assert actors.recover(worker) == Recovered({job_id: worker.id}, {worker.id})


@on_servers
def test_a_worker_that_is_being_recovered_claims_nothing(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    with elsewhere(actors.engine) as other:
        other.recover(worker)
        assert worker.claim() == []
    assert worker.claim() == []
    assert actors.state(job_id) is JobState.PENDING


# Beats


def test_a_beat_counts_the_claimers(actors: Actors) -> None:
    team = sorted([actors.worker(), actors.worker(), actors.worker()], key=lambda worker: worker.id)
    assert [(beat.alive, beat.claimers) for beat in (worker.beat() for worker in team)] == [
        ({worker.id: index}, 3) for index, worker in enumerate(team)
    ]
    actors.age(team[0], LEASE + 1)
    assert (team[1].beat().alive, team[2].beat().claimers) == ({team[1].id: 0}, 2)


def test_claimers_are_those_that_ask(actors: Actors) -> None:
    busy, first, second = sorted([actors.worker(), actors.worker(), actors.worker()], key=lambda worker: worker.id)
    assert busy.beat(asking=False).claimers == 2
    assert (first.beat().alive, second.beat().alive) == ({first.id: 0}, {second.id: 1})
    assert (busy.beat().claimers, first.beat().alive) == (3, {first.id: 1})


def test_one_beat_serves_several_lanes(actors: Actors) -> None:
    lanes = [actors.worker(), actors.worker()]
    for lane in lanes:
        actors.age(lane, LEASE + 1)
    beat = actors.engine.run(workers.beat([lane.id for lane in lanes], [], steady=True))
    assert (set(beat.alive), sorted(beat.alive.values()), beat.claimers) == ({lane.id for lane in lanes}, [0, 1], 2)
    assert actors.engine.run(workers.silent(1)) == []


def test_a_worker_declared_dead_learns_it_by_its_beat(actors: Actors) -> None:
    worker = actors.worker()
    actors.recover(worker)
    beat = worker.beat()
    assert (beat.alive, beat.claimers) == ({}, 0)
    assert not exists(actors, worker)


def test_a_number_is_given_once(actors: Actors) -> None:
    worker = actors.worker()
    assert not actors.engine.run(workers.enlist(worker.id, "another", lease=LEASE, beat=BEAT))


def test_workers_are_listed(actors: Actors) -> None:
    living, silent = actors.worker(lease=5), actors.worker()
    actors.age(silent, LEASE + 1)
    rows = {row.id: row for row in actors.engine.run(workers.list_workers())}
    assert (rows[living.id].name, rows[living.id].lease, rows[living.id].alive) == (living.name, 5, True)
    assert (rows[silent.id].name, rows[silent.id].alive) == (silent.name, False)


# Handing back


def test_a_claim_in_doubt_is_handed_back_without_an_attempt(actors: Actors) -> None:
    (known, doubtful, waiting), worker = actors.add_many(3), actors.worker()
    (kept,) = worker.claim()
    worker.claim()  # its answer never came
    before = actors.get(waiting)
    assert actors.engine.run(workers.hand_back([worker.id], [(worker.id, worker.turns)], [kept.lease])) == 1
    job = actors.get(doubtful)
    assert (job.state, job.attempts, job.worker, job.failures) == (JobState.PENDING, 0, None, ())
    assert (actors.state(known), actors.get(waiting)) == (JobState.RUNNING, before)
    (again,) = actors.worker().claim()
    assert (again.id, again.attempts, again.suspect) == (doubtful, 1, False)


def test_a_claim_in_doubt_that_took_nothing_changes_nothing(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.claim()
    assert actors.engine.run(workers.hand_back([worker.id], [(worker.id, 99)], [])) == 0
    assert actors.state(job_id) is JobState.RUNNING


def test_all_but_what_is_held_can_be_handed_back(actors: Actors) -> None:
    (first, second), (held, lost) = (actors.worker(), actors.worker()), actors.add_many(2)
    (kept,) = first.claim()
    first.claim()
    third = actors.add()
    second.claim()
    assert actors.engine.run(workers.hand_back([first.id], None, [kept.lease])) == 1
    assert [actors.state(job_id) for job_id in (held, lost, third)] == ["RUNNING", "PENDING", "RUNNING"]


def test_a_job_to_be_finished_is_handed_back_as_one(actors: Actors) -> None:
    actors.add()
    worker = actors.worker()
    worker.settle(worker.claim()[0], Back(Way.FINISH))
    (job,) = worker.claim()
    actors.engine.run(workers.hand_back([worker.id], None, []))
    (again,) = worker.claim()
    assert (again.attempts, again.finishing) == (job.attempts, job.finishing) == (1, 2)


def test_a_cancel_that_its_worker_did_not_survive_is_told_soon(actors: Actors) -> None:
    """The provider's bill goes on meanwhile."""
    job_id, worker = actors.add(), actors.worker()
    worker.settle(*worker.claim(), Back(Way.POLL))
    actors.engine.run(jobs.cancel([job_id]))
    (job,) = worker.claim()
    assert job.finishing == lifecycle.CANCELLING + 1
    actors.recover(worker)
    told = actors.get(job_id)
    assert told.run_at is not None
    assert 1.9 < told.run_at.timestamp() - told.failures[-1]["finished_at"] < 3.1


def test_a_suspect_is_handed_back_as_one(actors: Actors) -> None:
    actors.add()
    crash(actors)
    worker = actors.worker()
    worker.claim()
    actors.engine.run(workers.hand_back([worker.id], None, []))
    (again,) = worker.claim()
    assert (again.suspect, again.crashes, again.attempts) == (True, 1, 2)


@on_servers
def test_handing_back_waits_for_the_claim_that_is_in_flight(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    with ThreadPoolExecutor(1) as thread:
        with elsewhere(actors.engine) as other:
            assert through(worker, other).claim()
            back = thread.submit(actors.engine.run, workers.hand_back([worker.id], [(worker.id, 1)], []))
            until_somebody_waits(actors)
        assert back.result() == 1
    assert (actors.state(job_id), actors.get(job_id).attempts) == (JobState.PENDING, 0)


def test_who_leaves_hands_all_back_and_is_gone(actors: Actors) -> None:
    ids, lanes = actors.add_many(3), [actors.worker(), actors.worker()]
    for lane in lanes:
        lane.claim()
    stays = actors.worker()
    stays.claim()
    assert actors.engine.run(workers.leave([lane.id for lane in lanes])) == 2
    assert [(actors.state(job_id), actors.get(job_id).attempts) for job_id in ids] == [
        ("PENDING", 0),
        ("PENDING", 0),
        ("RUNNING", 1),
    ]
    assert [row.id for row in actors.engine.run(workers.list_workers())] == [stays.id]
