"""A network that swallows everything: nothing breaks, nothing answers, new connections are accepted and then silent.

Whoever cannot beat stops its jobs before others may take them, however long it waits for an answer or a connection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from dibs import Dibs, JobState, Task, current_job
from dibs.engines.postgres.engine import PostgresEngine
from tests.actors import Actors
from tests.engines import Engines
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LEASE, BEAT = 4.0, 0.2
PATIENCE = 4 * LEASE


@pytest.fixture
def direct(engines: Engines) -> Iterator[Actors]:
    """Those whose network is sound."""
    with engines.open("postgres18") as engine:
        yield Actors(engine)


@pytest.fixture
def proxy(direct: Actors) -> Iterator[Proxy]:
    """A network that is not."""
    assert isinstance(direct.engine, PostgresEngine)
    with Proxy.before(direct.engine.server.url) as proxy:
        yield proxy


@pytest.fixture
async def app(proxy: Proxy) -> AsyncIterator[Dibs]:
    """An app beyond that network, with the patience of every day."""
    app = Dibs(proxy.url, lease=LEASE, beat=BEAT)
    yield app
    await app.aclose()


class Job:
    """It goes on until it is stopped, and notes how long its worker was not heard of by then. Begun anew, it ends."""

    def __init__(self, app: Dibs, direct: Actors) -> None:
        self.begun, self.stopped = asyncio.Event(), asyncio.Event()
        self.direct, self.silence = direct, 0.0
        self.task: Task[..., None] = app.task(name="it")(self._run)

    async def _run(self) -> None:
        if self.stopped.is_set():
            return
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.silence = self.direct.sql(
                "select extract(epoch from clock_timestamp() - min(beat_at))::float8 from dibs.workers"
            )[0][0]
            assert current_job().cancelled
            self.stopped.set()


async def work(app: Dibs, ended: Callable[[], bool]) -> None:
    async with app.running():
        while not ended():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


async def drain(app: Dibs, ended: Callable[[], bool]) -> None:
    while not ended():  # the first one ends without its job, and hands it back
        await app.adrain()


@pytest.mark.parametrize("at_work", [work, drain])
async def test_who_is_cut_off_stops_before_others_may_take_over(
    app: Dibs, direct: Actors, proxy: Proxy, at_work: Callable[[Dibs, Callable[[], bool]], Any]
) -> None:
    job = Job(app, direct)
    job_id = (await job.task.aenqueue()).id
    working = asyncio.create_task(at_work(app, lambda: direct.state(job_id).final))
    try:
        async with asyncio.timeout(PATIENCE):
            await job.begun.wait()
            proxy.hang()
            await job.stopped.wait()
        assert job.silence < LEASE
        assert direct.state(job_id) is JobState.RUNNING  # nobody could be told
    finally:
        proxy.go_on()
    async with asyncio.timeout(2 * PATIENCE):
        await working
    ended = direct.get(job_id)
    assert (ended.state, ended.attempts, ended.failures) == (JobState.SUCCESSFUL, 1, ())
