"""An owner that was stopped for longer than its lease: another takes over, and its late write is refused."""

import asyncio
import os
import time
from multiprocessing.process import BaseProcess

import pytest

from dibs.engines.engine import Engine
from dibs.errors import DatabaseLocked, LeaseLost
from dibs.job import Claimed, JobState
from dibs.operations import jobs, queues
from dibs.payload import encode
from tests.actors import Actors
from tests.scenarios.claimer import Claimer, at_work, success
from tests.scenarios.crew import Crew, Flag, until
from tests.scenarios.ledger import Ledger
from tests.scenarios.places import Place, Places, long

LEASE, BEAT = 1.0, 0.2


def own(place: Place, ledger: Ledger, write: Flag) -> None:
    """Claim a job and beat; when told to, write: how far it is, and that it is done."""
    asyncio.run(_own(place, ledger, write))


async def _own(place: Place, ledger: Ledger, write: Flag) -> None:
    async with at_work(place.open(), lease=LEASE, beat=BEAT) as claimer:
        (job,) = (await claimer.turn(1)).claimed
        ledger.write("claimed", (job.id, job.token))
        await write.wait()
        try:
            await claimer.engine.arun(jobs.progress(job.lease, encode({"by": "the late owner"})))
            ledger.write("progress", (job.id, job.token))
        except LeaseLost:
            ledger.write("no-progress", (job.id, job.token))
        turn = await claimer.turn(0, [success(job.lease, encode("the late owner's"))])
        ledger.write("refused" if job.id in turn.lost else "settled", (job.id, job.token))


def stop_between_transactions(owner: BaseProcess, crew: Crew, place: Place) -> None:
    """Stop it where it holds no lock: on SQLite a process stopped in the middle of a write stops everyone."""
    while True:
        crew.pause(owner)
        engine = place.open(deadline=0.1)
        try:
            return engine.run_once(queues.resume("default"))
        except DatabaseLocked:
            crew.resume(owner)
            time.sleep(0.01)
        finally:
            engine.close()


async def take_over(claimer: Claimer) -> Claimed:
    """Judge and claim until the job of the dead owner is ours."""
    async with asyncio.timeout(30):
        while True:
            for job in (await claimer.turn(1)).claimed:
                return job
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres18", *long("sqlite-classic", "postgres16", "postgres-system")])
@pytest.mark.parametrize("when", ["while the heir holds the job", "after the heir is done"])
async def test_a_late_owner_is_refused(kind: str, when: str, places: Places, crew: Crew, ledger: Ledger) -> None:
    place, engine = places.fresh(kind)
    job_id, write = Actors(engine).add(), crew.flag("write")
    owner = crew.start(own, place, ledger, write)
    until(lambda: any(entry.event == "claimed" for entry in ledger.entries()), crew, "the owner claimed")
    async with at_work(place.open(), lease=LEASE, beat=BEAT, judge=True) as heir:
        stop_between_transactions(owner, crew, place)
        job = await take_over(heir)
        ledger.write("claimed", (job.id, job.token))
        if when == "while the heir holds the job":
            await asyncio.to_thread(wake_up, owner, crew, write)
            assert state(engine, job_id) == (JobState.RUNNING, None)
        turn = await heir.turn(0, [success(job.lease, encode("the heir's"))])
        assert not turn.lost
        ledger.write("settled", (job.id, job.token))
        if when == "after the heir is done":
            await asyncio.to_thread(wake_up, owner, crew, write)
    assert state(engine, job_id) == (JobState.SUCCESSFUL, "the heir's")
    heirs, owners = os.getpid(), owner.pid
    story = [(entry.event, entry.process) for entry in ledger.entries()]
    late = [("no-progress", owners), ("refused", owners)]
    ends = [*late, ("settled", heirs)] if when == "while the heir holds the job" else [("settled", heirs), *late]
    assert story == [("claimed", owners), ("claimed", heirs), *ends]


def wake_up(owner: BaseProcess, crew: Crew, write: Flag) -> None:
    """SIGCONT, and have it write."""
    write.set()
    crew.resume(owner)
    crew.join()


def state(engine: Engine, job_id: int) -> tuple[JobState, object]:
    """Its state, and what was written to it."""
    job = Actors(engine).get(job_id)
    return job.state, job.result or job.progress
