"""Rows of other people's tables are claimed, fenced, recovered and settled like jobs."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dibs.job import Claimed, JobState
from dibs.ladder import START
from dibs.lifecycle import SUCCESS, Back, Change, Done, Way, failure
from dibs.operations import adopted as rows
from dibs.operations import claims, jobs, workers
from dibs.operations.adopted import taken_of
from dibs.payload import decode, encode
from tests.actors import Actors, Worker
from tests.adopted.tables import Adopted, Hand
from tests.conformance.elsewhere import another

PATIENCE = 30.0
FAILED = Done(JobState.FAILED, failure=encode(failure(1, "ValueError: it's 100% broken")))


def keys_of(claimed: Iterable[Claimed]) -> list[list[str]]:
    return [[str(part) for part in taken_of(job).key] for job in claimed]


def test_rows_are_taken_in_their_order_and_marked(adopted: Adopted) -> None:
    adopted.fill()
    taken = adopted.worker(7).take(2)
    assert keys_of(taken) == [[str(part) for part in adopted.key(n)] for n in (0, 1)]
    assert adopted.states() == ["RUNNING", "RUNNING", "PENDING"]
    assert [job.attempts for job in taken] == [1, 1]
    row = decode(taken_of(taken[0]).row)
    assert {str(row[name]) for name in adopted.adoption.key} == {str(part) for part in adopted.key(0)}


def test_a_row_has_one_owner(adopted: Adopted) -> None:
    adopted.fill()
    first, second = adopted.worker(1), adopted.worker(2)
    one, two = first.take(2), second.take(2)
    assert len(one) == 2
    assert len(two) == 1
    assert not first.take()
    assert not second.take()


def test_claimers_at_once_share_the_rows(adopted: Adopted) -> None:
    """New rows, and rows that were handed back: each has one owner, and is made once."""
    adopted.fill()
    hands = [adopted.worker(n) for n in (1, 2, 3)]
    engines = [another(adopted.engine) for _ in hands]
    all_of_them = sorted([str(part) for part in adopted.key(n)] for n in range(3))
    for change in (Back(Way.RELEASE), SUCCESS):
        taken = at_once([hand.on(engine) for hand, engine in zip(hands, engines, strict=True)])
        assert sorted(keys_of(job for some in taken for job in some)) == all_of_them
        for hand, some in zip(hands, taken, strict=True):
            if not hand.settle(*[(job, change) for job in some]).lost and change is SUCCESS:
                adopted.produce(some)
    for engine in engines:
        engine.close()
    assert adopted.states() == ["SUCCESSFUL"] * 3
    assert adopted.made() == 3
    assert adopted.duplicates() == []


def at_once(hands: list[Hand]) -> list[list[Claimed]]:
    """What each of them takes, as long as it gets something."""
    barrier = Barrier(len(hands))

    def take(hand: Hand) -> list[Claimed]:
        barrier.wait(PATIENCE)
        got = list[Claimed]()
        while some := hand.take(1):
            got += some
        return got

    with ThreadPoolExecutor(len(hands)) as threads:
        return [*threads.map(take, hands)]


def test_columns_are_kept_up_to_date(adopted: Adopted) -> None:
    adopted.fill()
    worker, kept, key = adopted.worker(7), adopted.adoption.kept, adopted.key(0)
    (job,) = worker.take(1)
    for use, value in {"worker": "worker-7", "attempts": 1, "finished_at": None}.items():
        assert use not in kept or adopted.column(use, key) == value
    assert "started_at" not in kept or -1 <= adopted.since("started_at", key) < PATIENCE
    worker.settle((job, FAILED))
    assert "finished_at" not in kept or -1 <= adopted.since("finished_at", key) < PATIENCE
    assert "error" not in kept or adopted.column("error", key) == "ValueError: it's 100% broken"
    assert "worker" not in kept or adopted.column("worker", key) == "worker-7"


def test_a_row_that_runs_anew_has_not_ended(adopted: Adopted) -> None:
    """The error of the last attempt stays as long as there is a next one."""
    adopted.fill()
    worker, kept, key = adopted.worker(7), adopted.adoption.kept, adopted.key(0)
    job, *_ = worker.take()
    worker.settle((job, FAILED))
    adopted.set("PENDING", key)
    (anew,) = worker.take()
    for use in ("finished_at", "error"):
        assert use not in kept or adopted.column(use, key) is None
    worker.settle((anew, Back(Way.RETRY, 0.0, FAILED.failure)))
    (again,) = worker.take()
    assert "error" not in kept or adopted.column("error", key) == "ValueError: it's 100% broken"
    worker.settle((again, SUCCESS))
    assert "error" not in kept or adopted.column("error", key) is None


def test_outcomes_are_written_into_the_rows(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    a, b, c = worker.take()
    done = worker.settle((a, SUCCESS), (b, FAILED), (c, Back(Way.RETRY, 1000.0, FAILED.failure)))
    assert not done.lost
    assert adopted.states()[:2] == ["SUCCESSFUL", "FAILED"]
    assert adopted.states()[2] in ("PENDING", "RETRY")
    assert not worker.take(), "a retry that is not due is not taken as a new row"
    assert adopted.engine.run(jobs.get(a.id)).state == "SUCCESSFUL"


def test_settle_and_claim_in_one_turn(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    taken = worker.take(1)
    for _ in range(2):
        taken = worker.turn(1, [(job, SUCCESS) for job in taken]).claimed
        assert len(taken) == 1
    assert not worker.turn(1, [(job, SUCCESS) for job in taken]).claimed
    assert adopted.states() == ["SUCCESSFUL"] * 3


def test_a_retry_that_is_due_is_taken_again(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    first, *others = worker.take()
    worker.settle((first, Back(Way.RETRY, 0.0, FAILED.failure)), *[(job, SUCCESS) for job in others])
    (again,) = worker.take()
    assert again.id == first.id
    assert again.attempts == 2
    assert again.token != first.token
    assert taken_of(again).row is not None
    assert adopted.states() == ["RUNNING", "SUCCESSFUL", "SUCCESSFUL"]
    worker.settle((again, SUCCESS))
    assert adopted.states() == ["SUCCESSFUL"] * 3


def test_what_is_handed_back_waits_again_attempt_not_used(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    first, *_ = worker.take(1)
    turn = worker.turn(2, [(first, Back(Way.RELEASE))])
    assert adopted.states()[0] in ("PENDING", "RUNNING")
    taken = [*turn.claimed, *worker.take()]
    assert sorted(job.attempts for job in taken) == [1, 1, 1]
    assert adopted.states() == ["RUNNING"] * 3


def test_a_late_owner_cannot_write(adopted: Adopted) -> None:
    adopted.fill()
    late, heir = adopted.worker(1), adopted.worker(2)
    (job, *_) = late.take(1)
    adopted.engine.run(workers.recover(known=[late.worker]))
    adopted.engine.run(rows.mend(adopted.source))
    assert adopted.states()[0] in ("PENDING", "RETRY")
    assert not finishes(late, job)
    assert adopted.states()[0] in ("PENDING", "RETRY")
    mine = until_taken(adopted, heir, job.id)
    assert mine.attempts == 2
    assert mine.crashes == 1
    assert late.settle((job, FAILED)).lost == {job.id}
    assert not finishes(late, job)
    assert adopted.states()[0] == "RUNNING"
    assert finishes(heir, mine)
    assert adopted.states()[0] == "SUCCESSFUL"
    assert late.settle((job, FAILED)).lost == {job.id}
    assert not finishes(late, job)
    assert adopted.states()[0] == "SUCCESSFUL"
    assert adopted.made() == 1
    assert adopted.duplicates() == []


def finishes(hand: Hand, job: Claimed) -> bool:
    """What it has made of the row counts if it may say so."""
    if hand.settle((job, SUCCESS)).lost:
        return False
    hand.adopted.produce([job])
    return True


def test_a_judge_takes_the_rows_of_the_silent(adopted: Adopted) -> None:
    """By its own beats, and theirs; they come one at a time, since one of them may have killed their worker."""
    adopted.fill()
    silent, judge = adopted.worker(1), adopted.worker(2)
    lost = silent.take()
    actors = Actors(adopted.engine)
    assert not adopted.engine.run(workers.recover(judge.worker)).jobs, "it beats"
    actors.age(Worker(adopted.engine, silent.worker, ""), 16)
    actors.trust(Worker(adopted.engine, judge.worker, ""), 16)
    assert set(adopted.engine.run(workers.recover(judge.worker)).jobs) == {job.id for job in lost}
    assert adopted.engine.run(rows.mend(adopted.source)) == 3
    adopted.application.wait(1)
    for _ in lost:
        (job,) = judge.take()
        assert (job.suspect, job.attempts, job.crashes) == (True, 2, 1)
        assert taken_of(job).row is not None
        judge.settle((job, SUCCESS))
    assert not judge.take()
    assert silent.settle(*[(job, FAILED) for job in lost]).lost == {job.id for job in lost}
    assert adopted.states() == ["SUCCESSFUL"] * 3


def until_taken(adopted: Adopted, worker, job_id):
    """Recovered jobs are due within a second, which is over now."""
    adopted.application.wait(1)
    while True:
        for job in worker.take():
            if job.id == job_id:
                return job


def test_a_settle_sent_twice_counts_once(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (job,) = worker.take(1)
    worker.settle((job, SUCCESS))
    adopted.set("PENDING", adopted.key(0))
    again = worker.settle((job, SUCCESS))
    assert again.before == {job.id: JobState.SUCCESSFUL}
    assert not again.lost
    assert adopted.states()[0] == "PENDING", "the application has queued it anew"
    assert len(worker.take(1)) == 1


def test_who_is_not_enlisted_takes_nothing(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    adopted.engine.run(workers.leave([worker.worker]))
    assert not worker.take()
    assert adopted.states() == ["PENDING"] * 3


@pytest.mark.parametrize("change, theirs", [(SUCCESS, "FAILED"), (FAILED, "SUCCESSFUL")], ids=["ours", "theirs"])
def test_what_the_application_changes_under_our_hands_stays_as_it_put_it(
    adopted: Adopted, change: Change, theirs: str
) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    a, b, c = worker.take()
    adopted.set(theirs, adopted.key(0))
    adopted.set("PENDING", adopted.key(1))
    adopted.remove(adopted.key(2))
    assert not worker.settle((a, change), (b, change), (c, change)).lost
    assert adopted.states() == [theirs, "PENDING", "gone"]
    (again,) = worker.take()
    assert keys_of([again]) == [[str(part) for part in adopted.key(1)]]
    assert again.id != b.id


def test_rows_that_are_gone_before_their_retry_come_without_a_row(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    a, b, c = worker.take()
    worker.settle(*[(job, Back(Way.RETRY, 0.0)) for job in (a, b, c)])
    adopted.remove(adopted.key(0))
    adopted.set("SUCCESSFUL", adopted.key(1))
    taken = {job.id: taken_of(job).row for job in worker.take()}
    assert taken[a.id] is None
    assert taken[b.id] is None
    assert taken[c.id] is not None
    assert adopted.states() == ["gone", "SUCCESSFUL", "RUNNING"]


def test_a_paused_queue_gives_nothing(adopted: Adopted) -> None:
    from dibs.operations import queues

    adopted.fill()
    adopted.engine.run(queues.pause(adopted.source.name))
    assert not adopted.worker(1).take()
    adopted.engine.run(queues.resume(adopted.source.name))
    assert len(adopted.worker(2).take()) == 3


def test_a_place_in_the_order(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (first,) = worker.take(1)
    place = taken_of(first).place
    if place is None:
        return  # an engine without a cursor
    assert len(worker.take(5, place)) in (1, 2), "all that come after it, but those whose place is unknown"
    worker.take()
    assert adopted.states() == ["RUNNING"] * 3


def test_counts(adopted: Adopted) -> None:
    adopted.fill()
    assert adopted.engine.run(rows.counted(adopted.source, 100)) == (3, 0)
    assert adopted.engine.run(rows.waiting(adopted.source))
    adopted.worker(1).take(2)
    assert adopted.engine.run(rows.counted(adopted.source, 100)) == (1, 2)
    adopted.worker(2).take(2)
    assert not adopted.engine.run(rows.waiting(adopted.source))


def test_rows_left_behind_by_others_are_taken_when_their_time_is_over(adopted: Adopted) -> None:
    adopted.fill()
    adopted.set("RUNNING", adopted.key(0))
    impatient = adopted.source._replace(stuck_after=0.001)
    assert adopted.engine.run(rows.notice(impatient)) == 1
    assert adopted.engine.run(rows.notice(impatient)) == 0, "once"
    adopted.source = impatient
    worker = adopted.worker(1)
    taken = worker.take()
    while len(taken) < 3:
        taken += worker.take()
    assert adopted.states() == ["RUNNING"] * 3
    assert all(taken_of(job).row for job in taken)


def test_rows_that_others_still_work_on_are_left_to_them(adopted: Adopted) -> None:
    adopted.fill()
    adopted.set("RUNNING", adopted.key(0))
    assert adopted.engine.run(rows.notice(adopted.source)) == 1
    assert len(adopted.worker(1).take()) == 2
    adopted.set("PENDING", adopted.key(0))
    assert len(adopted.worker(2).take()) == 1, "it is queued anew, and nobody waits for the time to be over"


@pytest.mark.parametrize("watched", [False, True])
def test_a_row_that_is_put_off_is_not_taken_before(adopted: Adopted, watched: bool) -> None:
    """Also one that was watched, and that its application has queued again."""
    adopted.fill()
    if watched:
        adopted.set("RUNNING", adopted.key(0))
        assert adopted.engine.run(rows.notice(adopted.source)) == 1
        adopted.set("PENDING", adopted.key(0))
    first = adopted.engine.run(rows.first(adopted.source))
    assert first is not None
    adopted.engine.run(rows.put_off(adopted.source, first, 100.0))
    adopted.engine.run(rows.put_off(adopted.source, first, 0.0))  # it is not the first any more
    worker = adopted.worker(1)
    assert len(worker.take()) == 2
    adopted.application.wait(101)
    (job,) = worker.take()
    assert keys_of([job]) == [[str(part) for part in adopted.key(0)]]
    assert (job.attempts, job.suspect) == (1, False)
    assert adopted.states() == ["RUNNING"] * 3


def test_what_a_lost_answer_took_is_handed_back_and_taken_again(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    lost = worker.take()
    assert adopted.engine.run(workers.hand_back([worker.worker], None, ())) == 3
    again = worker.take()
    assert {job.id for job in again} == {job.id for job in lost}
    assert {job.attempts for job in again} == {1}
    assert all(taken_of(job).row for job in again)


def test_what_is_to_be_finished_is_taken_once_more(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (job, *_) = worker.take(1)
    worker.settle((job, Back(Way.FINISH, 0.0, FAILED.failure)))
    assert adopted.states()[0] == "RUNNING"
    last = next(each for each in worker.take() if each.id == job.id)
    assert last.finishing
    assert taken_of(last).row is not None
    worker.settle((last, Done(JobState.FAILED)))
    assert adopted.states()[0] == "FAILED"


def test_a_released_row_that_the_application_has_failed_is_left_so(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (job,) = worker.take(1)
    worker.settle((job, Back(Way.RELEASE)))
    adopted.set("FAILED", adopted.key(0))
    assert {job.id: taken_of(job).row for job in worker.take()}[job.id] is None
    assert adopted.states()[0] == "FAILED"


def test_a_watched_row_that_its_owner_has_failed_is_left_so(adopted: Adopted) -> None:
    adopted.fill()
    adopted.set("RUNNING", adopted.key(0))
    adopted.source = adopted.source._replace(stuck_after=0.001)
    adopted.engine.run(rows.notice(adopted.source))
    adopted.set("FAILED", adopted.key(0))
    worker = adopted.worker(1)
    taken = worker.take()
    while len(taken) < 3:
        taken += worker.take()
    assert [taken_of(job).row for job in taken].count(None) == 1
    assert adopted.states() == ["FAILED", "RUNNING", "RUNNING"]


def test_a_snooze_on_the_first_attempt_is_waited_for(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (job,) = worker.take(1)
    worker.settle((job, Back(Way.SNOOZE, 3600.0)))
    assert job.id not in {each.id for each in worker.take()}
    assert len(worker.take()) == 0


def test_a_row_that_was_taken_over_is_ours_like_any_other(adopted: Adopted) -> None:
    """Its hook runs, it can be cancelled, and a crash counts, although it began just now."""
    adopted.fill()
    for n in range(3):
        adopted.set("RUNNING", adopted.key(n))
    adopted.source = adopted.source._replace(stuck_after=0.001)
    assert adopted.engine.run(rows.notice(adopted.source)) == 3
    worker, heir = adopted.worker(1), adopted.worker(2)
    taken = worker.take()
    while len(taken) < 3:
        taken += worker.take()
    adopted.source = adopted.source._replace(stuck_after=3600.0)
    hooked, cancelled, crashed = taken
    worker.settle((hooked, Back(Way.FINISH, 0.0, FAILED.failure)))
    adopted.engine.run(jobs.cancel([cancelled.id]))
    adopted.engine.run(workers.recover(known=[worker.worker]))
    adopted.application.wait(1)
    again = []
    while len(again) < 3:
        again += heir.take()
    assert {job.id for job in again} == {hooked.id, cancelled.id, crashed.id}
    assert all(taken_of(job).row for job in again)


def test_a_row_queued_anew_while_its_hook_waits_is_worked_on_anew(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (job,) = worker.take(1)
    worker.settle((job, Back(Way.FINISH, 0.0, FAILED.failure)))
    adopted.set("PENDING", adopted.key(0))
    last = next(each for each in worker.take() if each.id == job.id)
    assert taken_of(last).row is None
    worker.turn(0, [(last, SUCCESS)])
    (anew,) = worker.take()
    assert anew.id != job.id
    assert keys_of([anew]) == [[str(part) for part in adopted.key(0)]]


def test_of_two_leases_of_one_job_the_later_one_is_written(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (old,) = worker.take(1)
    worker.settle((old, Back(Way.RETRY, 0.0)))
    new = next(job for job in worker.take() if job.id == old.id)
    worker.settle((new, SUCCESS), (old, FAILED))
    assert adopted.states()[0] == "SUCCESSFUL"


def test_of_two_leases_that_succeeded_one_is_written(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (old,) = worker.take(1)
    worker.settle((old, Back(Way.RETRY, 0.0)))
    new = next(job for job in worker.take() if job.id == old.id)
    turn = worker.settle((old, SUCCESS), (new, SUCCESS))
    assert not turn.lost
    assert not turn.unwritten
    assert adopted.states()[0] == "SUCCESSFUL"


def test_a_word_for_retries_of_their_own_does_not_lose_a_row(adopted: Adopted) -> None:
    adopted.fill()
    adopted.set("RETRY", adopted.key(0))
    if adopted.adoption.words[JobState.RETRY] != adopted.adoption.words[JobState.PENDING]:
        adopted.source = adopted.source._replace(stuck_after=0.001)
        assert adopted.engine.run(rows.notice(adopted.source)) == 1
    worker = adopted.worker(1)
    taken = worker.take()
    while len(taken) < 3:
        taken += worker.take()
    assert adopted.states() == ["RUNNING"] * 3


def test_who_does_not_know_the_table_does_not_take_its_jobs(adopted: Adopted) -> None:
    adopted.fill()
    worker = adopted.worker(1)
    (job, *_) = worker.take(1)
    worker.settle((job, Back(Way.RETRY, 0.0)))
    ranges = [(adopted.source.name, rank, *START) for rank in range(30)]
    stranger = claims.Want(worker.worker, 99, 10, ranges)
    assert not adopted.engine.run(claims.turn(stranger)).claimed
    assert len(worker.take(1)) == 1
