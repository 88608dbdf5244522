"""Whoever watches goes on being told, whatever others do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import Dibs
from dibs.job import NewJob
from dibs.operations import jobs
from dibs.operations.rows import Seen
from dibs.server.hub import Hub, _ids
from tests.apps import on_sqlite

PATIENCE = 20.0


class Ear:
    """Somebody who watches."""

    def __init__(self) -> None:
        self.heard: dict[int, Seen] = {}
        self.some = asyncio.Event()

    def tell(self, seen: Seen) -> None:
        self.heard[seen.id] = seen
        self.some.set()

    def missing(self, job_id: int) -> None:
        raise AssertionError(f"there is no job {job_id}")

    async def until(self, told: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not told(self.heard):
                self.some.clear()
                await self.some.wait()


@pytest.fixture
async def hub(async_app: Dibs) -> AsyncIterator[Hub]:
    hub = Hub(async_app.engine, 5.0)
    yield hub
    await hub.aclose()


async def add(app: Dibs, count: int = 1) -> list[int]:
    return [int(each) for each in await app.engine.arun(jobs.add_many([NewJob("noop", b"{}")] * count))]


async def test_one_who_leaves_in_the_middle_of_a_look_does_not_end_it(
    async_app: Dibs, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, leaves = Ear(), Ear()
    (job_id,) = await add(async_app)
    original = hub.engine.arun_once
    left = asyncio.Event()

    async def arun_once(operation: Any) -> Any:
        answer = await original(operation)
        if operation.name == "newest" and not left.is_set():
            left.set()
            hub.unwatch_queue(leaves, "default")
        return answer

    monkeypatch.setattr(hub.engine, "arun_once", arun_once)
    hub.watch_queue(leaves, "default")
    hub.watch(stays, job_id)
    await left.wait()
    await stays.until(lambda heard: job_id in heard)
    await async_app.engine.arun(jobs.cancel([job_id]))
    await stays.until(lambda heard: heard[job_id].state.final)


async def test_one_who_leaves_before_it_is_told_is_not_told(
    async_app: Dibs, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(async_app)
    stays, leaves = Ear(), Ear()
    original = hub.engine.arun_once

    async def arun_once(operation: Any) -> Any:
        if operation.name == "look" and stays.heard:  # who came first was told, and the other is next
            hub.unwatch_queue(leaves, "default")
        return await original(operation)

    for ear in (stays, leaves):
        hub.queues.setdefault("default", set()).add(ear)
        hub.came[ear, "default"] = None
    monkeypatch.setattr(hub.engine, "arun_once", arun_once)
    await hub.run_once()
    assert (len(stays.heard), leaves.heard) == (1, {})


async def test_it_goes_on_after_a_mistake_of_our_own(
    async_app: Dibs, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = await add(async_app)
    original = hub.engine.arun_once
    mistakes = 2

    async def arun_once(operation: Any) -> Any:
        nonlocal mistakes
        if operation.name == "look" and mistakes:
            mistakes -= 1
            raise TypeError("on purpose")
        return await original(operation)

    monkeypatch.setattr(hub.engine, "arun_once", arun_once)
    ear = Ear()
    hub.watch(ear, job_id)
    await ear.until(lambda heard: job_id in heard)
    assert mistakes == 0


@pytest.mark.parametrize("text", ["", "x", "[" * 3_900, '{"jobIds":"7"}', '{"jobIds":[' * 500])
def test_a_notification_that_is_none(text: str) -> None:
    assert _ids(text) == []


@on_sqlite
async def test_old_jobs_of_a_file_are_told_of_when_they_are_run(async_app: Dibs, hub: Hub) -> None:
    """Nobody says which job has changed in a file: so those that come next are kept in sight."""

    @async_app.task(name="noop")
    async def noop() -> None: ...

    ids = await add(async_app, 2_500)
    ear = Ear()
    hub.watch_queue(ear, "default")
    await ear.until(lambda heard: ids[-1] in heard)
    await async_app.adrain(limit=3)
    await ear.until(lambda heard: all(job_id in heard and heard[job_id].state.final for job_id in ids[:3]))


async def test_many_jobs_that_are_added_at_once_are_all_told_of(async_app: Dibs, hub: Hub) -> None:
    ear = Ear()
    (first,) = await add(async_app)
    hub.watch_queue(ear, None)
    await ear.until(lambda heard: first in heard)
    ids = await add(async_app, 3_500)
    await ear.until(lambda heard: heard.keys() >= set(ids))


async def test_many_who_come_do_not_keep_others_waiting(async_app: Dibs, hub: Hub) -> None:
    """And one who says the same again and again is one."""
    (job_id,) = await add(async_app)
    crowd, ear = Ear(), Ear()
    for _ in range(3):
        for number in range(1_000):
            hub.watch_queue(crowd, f"q{number}")
    assert len(hub.came) == 1_000
    hub.watch(ear, job_id)
    await ear.until(lambda heard: job_id in heard)
    assert len(hub.came) >= 900
    for number in range(1_000):
        hub.unwatch_queue(crowd, f"q{number}")
    assert hub.came == {}
