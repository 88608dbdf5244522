"""Queues: which there are, pausing them, counting them."""

import pytest

from dibs.job import JobState
from dibs.lifecycle import Back, Way
from dibs.operations import holding, jobs, queues
from dibs.operations.rows import QueueCounts
from tests.actors import Actors, Worker
from tests.conformance.kinds import on_files, on_servers


def counts(actors: Actors) -> dict[str, QueueCounts]:
    return {one.name: one for one in actors.engine.run(queues.counts(actors.engine.schema))}  # type: ignore[attr-defined]  # both have one


def names(actors: Actors) -> list[str]:
    return actors.engine.run(queues.names())


def test_queues_with_waiting_jobs_are_found(actors: Actors) -> None:
    assert names(actors) == []
    for queue in ("b", "a", "c", "a"):
        actors.add(queue=queue, priority=9 if queue == "a" else 0)
    actors.add(queue="later", delay=60)
    assert names(actors) == ["a", "b", "c", "later"]


def test_queues_are_found_among_many_jobs(actors: Actors) -> None:
    for queue in ("z", "m", "A", "é"):
        actors.add_many(50, queue=queue)
    assert names(actors) == ["A", "m", "z", "é"]


def test_a_paused_queue_is_known_although_it_is_empty(actors: Actors) -> None:
    actors.pause("empty")
    assert names(actors) == ["empty"]
    assert counts(actors)["empty"].paused
    actors.resume("empty")
    assert (names(actors), counts(actors)["empty"].paused) == (["empty"], False)


def test_pausing_twice_is_fine(actors: Actors) -> None:
    for _ in range(2):
        actors.pause()
    actors.resume()
    actors.resume()
    actors.resume("never paused")
    actors.add()
    assert len(actors.worker().claim()) == 1


def test_who_holds_jobs_is_told_of_others_who_ask_and_of_queues_that_are_paused(actors: Actors) -> None:
    actors.pause("paused")
    actors.pause("resumed")
    actors.resume("resumed")
    one, another = actors.worker(), actors.worker()

    def told(*workers: Worker) -> holding.Reasons:
        return actors.engine.run(holding.reasons([worker.id for worker in workers]))

    assert told(one, another) == (False, {"paused"})
    assert told(one) == (True, {"paused"})
    another.beat(asking=False)
    assert not told(one).others_ask
    actors.engine.run(holding.ask([another.id]))
    assert told(one).others_ask
    actors.age(another, 3600.0)
    assert not told(one).others_ask


def test_a_queue_can_be_paused_again(actors: Actors) -> None:
    actors.add()
    actors.pause()
    actors.resume()
    actors.pause()
    assert actors.worker().claim() == []


def test_counts_tell_states_apart(actors: Actors) -> None:
    ids, worker = actors.add_many(8), actors.worker()
    actors.add(delay=60)
    good, bad, again, asleep, running, cancelled = worker.claim(6)
    worker.succeed(good)
    worker.fail(bad)
    worker.retry(again)
    worker.settle(asleep, Back(Way.SNOOZE, 60.0))
    actors.engine.run(jobs.cancel([cancelled.id]))
    oldest = actors.get(ids[6]).run_at
    assert counts(actors) == {
        "default": QueueCounts(
            "default", False, waiting=2, later=2, retry=1, running=1, failed=1, cancelled=1, oldest=oldest
        )
    }
    assert actors.state(running.id) is JobState.RUNNING


def test_counts_tell_queues_apart(actors: Actors) -> None:
    actors.add_many(2, queue="a")
    actors.add_many(3, queue="b")
    dead = actors.add(queue="dead")
    actors.engine.run(jobs.cancel([dead]))
    assert {name: (one.waiting, one.cancelled) for name, one in counts(actors).items()} == {
        "a": (2, 0),
        "b": (3, 0),
        "dead": (0, 1),
    }


def test_the_oldest_is_the_one_due_for_longest(actors: Actors) -> None:
    actors.add(priority=9, delay=60)
    assert counts(actors)["default"].oldest is None
    low, high = actors.add(priority=0), actors.add(priority=9)
    assert counts(actors)["default"].oldest == actors.get(low).run_at
    actors.engine.run(jobs.cancel([low]))
    assert counts(actors)["default"].oldest == actors.get(high).run_at
    actors.worker().claim()
    assert counts(actors)["default"].oldest is None


def test_counts_are_exact_up_to_a_number(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "EXACT", 3)
    actors.add_many(3)
    one = counts(actors)["default"]
    assert (one.waiting, one.estimate, one.as_of) == (3, None, None)


@on_servers
def test_beyond_it_there_is_an_estimate_that_says_how_old_it_is(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "EXACT", 3)
    actors.add_many(60)
    actors.add_many(40, queue="other")
    actors.sql("analyze dibs.jobs")
    found = counts(actors)
    assert (found["default"].estimate, found["other"].estimate) == (60, 40)
    assert found["default"].as_of is not None
    assert found["default"].waiting == 4  # as many as were looked at


@on_servers
def test_an_estimate_is_never_less_than_what_was_counted(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "EXACT", 3)
    actors.add_many(10)
    assert counts(actors)["default"].estimate == 4


@on_files
def test_a_file_counts_exactly(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "EXACT", 3)
    actors.add_many(10)
    one = counts(actors)["default"]
    assert (one.waiting, one.estimate) == (10, None)
