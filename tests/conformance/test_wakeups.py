"""Wake-ups are hints: who listens hears of what was committed, a little before it would have looked anyway."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime
from typing import Any, TypeVar

import pytest

from dibs.engines.engine import Engine, Hint
from dibs.job import NewJob
from dibs.lifecycle import Back, Way
from dibs.operations import claims, jobs, queues, workers
from tests.actors import Actors
from tests.conformance.elsewhere import elsewhere, rolled_back
from tests.conformance.kinds import on_files

T = TypeVar("T")

PATIENCE = 10.0


async def soon(answer: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await answer


def pushes(engine: Engine) -> bool:
    """Whether a commit wakes listeners: known after the first connection, for a pooler may be between."""
    engine.run(queues.names())
    return engine.can.push_wakeups


async def heard(hints: AsyncIterator[Hint], channel: str = "dibs_wake") -> dict[str, Any]:
    """What the next hint on a channel says."""
    while True:
        hint = await soon(anext(hints))
        if hint.channel == channel:
            return json.loads(hint.payload)


async def test_a_new_job_wakes_listeners(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        job_id = actors.add(queue="q", priority=9)
        hint = await heard(hints)
    assert (hint["queue"], hint["rank"]) == ("q", 0)
    assert datetime.fromisoformat(hint["runAt"]) == actors.get(job_id).run_at


async def test_many_new_jobs_wake_once_for_each_range(actors: Actors) -> None:
    """From where they begin, however late the commit comes."""
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        ids = actors.engine.run(jobs.add_many([NewJob("task", queue=queue) for queue in "aabba"]))
        told = [await heard(hints), await heard(hints)]
        actors.add(queue="last")
        assert (await heard(hints))["queue"] == "last"
    assert [hint["queue"] for hint in told] == ["a", "b"]
    first = min(actors.get(job_id).run_at for job_id in ids)  # type: ignore[type-var]  # all have one
    assert all(datetime.fromisoformat(hint["runAt"]) <= first for hint in told)


async def test_jobs_added_together_wake_once_for_each_range(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        new = [*(NewJob("task", queue=queue) for queue in "aaba"), NewJob("task", queue="later", delay=60)]
        actors.engine.run(jobs.add_each(new))
        told = [await heard(hints), await heard(hints)]
        actors.add(queue="last")
        assert (await heard(hints))["queue"] == "last"
    assert sorted(hint["queue"] for hint in told) == ["a", "b"]


async def test_a_new_job_with_a_key_wakes_listeners(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        actors.add(queue="q", unique_key="k")
        assert (await heard(hints))["queue"] == "q"


async def test_a_job_due_later_wakes_nobody(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        actors.add(queue="later", delay=60)
        actors.add(queue="later", delay=60, unique_key="k")
        actors.add_many(2, queue="later", delay=60)
        actors.add(queue="now")
        assert (await heard(hints))["queue"] == "now"


async def test_a_hint_comes_with_the_commit_and_not_before(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        with elsewhere(actors.engine) as other:
            other.add(queue="first")
            actors.add(queue="second")
            assert (await heard(hints))["queue"] == "second"
        assert (await heard(hints))["queue"] == "first"


async def test_what_is_rolled_back_wakes_nobody(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        with rolled_back(actors.engine) as other:
            other.add(queue="gone")
        actors.add(queue="here")
        assert (await heard(hints))["queue"] == "here"


async def test_a_notification_made_by_hand_arrives(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    async with actors.engine.listen() as hints:
        actors.engine.run(jobs.notify("job_events", '{"jobId":7}'))
        assert await soon(anext(hints)) == Hint("job_events", '{"jobId":7}')
        actors.engine.run(jobs.notify("dibs_wake", "anything"))
        assert await soon(anext(hints)) == Hint("dibs_wake", "anything")


async def test_a_turn_carries_events(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    actors.add()
    (job,) = actors.worker().claim()
    async with actors.engine.listen() as hints:
        done = claims.Settle(job.lease, Back(Way.RETRY, 60.0))
        actors.engine.run(claims.settle([done], ['{"jobId":1}', '{"jobIds":[2,3]}']))
        assert await heard(hints, "job_events") == {"jobId": 1}
        assert await heard(hints, "job_events") == {"jobIds": [2, 3]}


@pytest.mark.parametrize("way", ["released", "recovered", "handed back", "retried by a person"])
async def test_a_job_that_can_be_claimed_again_wakes_listeners(actors: Actors, way: str) -> None:
    if not pushes(actors.engine):
        return
    actors.add(priority=7)
    worker = actors.worker()
    (job,) = worker.claim()
    if way == "retried by a person":
        actors.engine.run(jobs.cancel([job.id]))
    async with actors.engine.listen() as hints:
        match way:
            case "released":
                worker.settle(job, Back(Way.RELEASE))
            case "recovered":
                actors.recover(worker)
            case "handed back":
                actors.engine.run(workers.hand_back([worker.id], None, []))
            case "retried by a person":
                actors.engine.run(jobs.retry(job.id))
        hint = await heard(hints)
    assert (hint["queue"], hint["rank"]) == ("default", 22 if way == "recovered" else 2)
    assert datetime.fromisoformat(hint["runAt"]) == actors.get(job.id).run_at


@pytest.mark.parametrize("way", ["cancelled", "retried by a person", "recovered"])
async def test_what_is_done_to_jobs_from_outside_is_told(actors: Actors, way: str) -> None:
    if not pushes(actors.engine):
        return
    ids, worker = actors.add_many(2), actors.worker()
    worker.claim(2)
    if way == "retried by a person":
        actors.engine.run(jobs.cancel(ids))
    async with actors.engine.listen() as hints:
        match way:
            case "cancelled":
                actors.engine.run(jobs.cancel(ids))
            case "retried by a person":
                actors.engine.run(jobs.retry_matching(jobs.Filter()))
            case "recovered":
                actors.recover(worker)
        assert (await heard(hints, "job_events"))["jobIds"] == ids


async def test_a_resumed_queue_wakes_listeners(actors: Actors) -> None:
    if not pushes(actors.engine):
        return
    actors.pause("q")
    async with actors.engine.listen() as hints:
        actors.resume("q")
        actors.resume("q")
        assert (await heard(hints))["queue"] == "q"
        actors.add(queue="last")
        assert (await heard(hints))["queue"] == "last"


@on_files
async def test_another_connections_commit_gives_a_hint(actors: Actors) -> None:
    pushes(actors.engine)
    async with actors.engine.listen() as hints:
        with elsewhere(actors.engine) as other:
            other.add()
        assert (await soon(anext(hints))).channel == "dibs_wake"
        actors.worker()
        assert (await soon(anext(hints))).channel == "dibs_wake"


# Naming jobs


def test_one_event_names_its_job() -> None:
    assert claims.events_payload([7]) == ['{"jobId":7}']


def test_no_event_says_nothing() -> None:
    assert claims.events_payload([]) == []


@pytest.mark.parametrize("first", [1, 2**63 - 5000])
def test_many_events_fit_their_limit_and_miss_nobody(first: int) -> None:
    ids = list(range(first, first + 4999))
    parts = claims.events_payload(ids)
    assert all(len(part.encode()) < 8000 for part in parts)
    assert [job_id for part in parts for job_id in json.loads(part)["jobIds"]] == ids
