"""What a worker does now and then, besides its jobs."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import Dibs, JobState
from dibs.errors import Unreachable
from dibs.operations.operation import Operation
from dibs.worker import housekeeping
from dibs.worker.housekeeping import Housekeeping
from tests.actors import Actors, Worker

PATIENCE = 30.0


@pytest.fixture
async def app(url: str) -> AsyncIterator[Dibs]:
    app = Dibs(url)
    yield app
    await app.aclose()


def claimed_by_nobody(app: Dibs) -> int:
    """A job whose worker has no row."""
    actors = Actors(app.engine)
    job_id, worker = actors.add("it"), actors.worker()
    worker.claim()
    vanish(actors, worker)
    return job_id


def vanish(actors: Actors, worker: Worker) -> None:
    actors.sql(f"delete from dibs.workers where id = {worker.id}")


async def test_jobs_whose_worker_has_no_row_are_freed(app: Dibs) -> None:
    job_id = await asyncio.to_thread(claimed_by_nobody, app)
    assert await Housekeeping(app.engine).run_once() == (1, 0)
    assert (await app.aget(job_id)).state is JobState.RETRY
    assert await Housekeeping(app.engine).run_once() == (0, 0)


async def test_a_worker_keeps_house(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "EVERY", 0.01)

    @app.task(name="it")
    async def it() -> None: ...

    job_id = await asyncio.to_thread(claimed_by_nobody, app)
    async with asyncio.timeout(PATIENCE), app.running():
        job = await app.ajoin(job_id)
    assert (job.state, job.attempts) == (JobState.SUCCESSFUL, 2)
    assert job.failures[0]["error"] == "the worker vanished"


class Slept(Exception):
    """Enough."""


async def test_it_is_done_every_ten_minutes_or_so(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker at a time of its own."""
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise Slept

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(20):
        with pytest.raises(Slept):
            await Housekeeping(app.engine).run()
    assert all(300 <= pause <= 900 for pause in pauses)
    assert len(set(pauses)) == 20


async def test_one_that_failed_is_tried_again(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "EVERY", 0.001)
    again, arun, said = threading.Event(), app.engine.arun, list[str]()

    async def away_at_first(operation: Operation[Any]) -> Any:
        said.append(operation.name)
        if len(said) == 1:
            raise Unreachable("no route")
        again.set()
        return await arun(operation)

    monkeypatch.setattr(app.engine, "arun", away_at_first)
    keeping = asyncio.create_task(Housekeeping(app.engine).run())
    assert await asyncio.to_thread(again.wait, PATIENCE)
    assert said[:2] == ["recover_orphans"] * 2
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
