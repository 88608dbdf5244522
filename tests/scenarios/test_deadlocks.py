"""Claimers that take turns, people who cancel and retry, recoveries and hand-backs, all at once: not one deadlock.

The judge is the server, which counts every deadlock that it breaks; our own engine would only try again.
"""

import asyncio
import random
import re
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from dibs.engines.engine import Engine
from dibs.job import Claimed, JobId, JobState, NewJob
from dibs.lifecycle import Back, Change, Done, Way, failure
from dibs.operations import jobs, workers
from dibs.operations.claims import Settle
from dibs.operations.jobs import Filter
from dibs.payload import encode
from dibs.worker.identity import enlist, new_name
from tests.actors import Actors
from tests.scenarios.claimer import Claimer, at_work
from tests.scenarios.crew import CONTEXT, Crew, Flag
from tests.scenarios.ledger import Ledger
from tests.scenarios.places import Place, Places, long

CLAIMERS = 6
BATCH = 10
CRASH, IN_DOUBT = 0.01, 0.02  # of the turns
KEYS, ROUNDS = 50, 50
BOOM = encode(failure(1, "boom"))

OUTCOMES: dict[Change, int] = {
    Done(JobState.SUCCESSFUL): 50,
    Done(JobState.FAILED, failure=BOOM): 10,
    Back(Way.RETRY, 0.0, BOOM): 15,
    Back(Way.SNOOZE): 10,
    Back(Way.RELEASE): 15,
}


def take_turns(place: Place, ledger: Ledger, turns: int) -> None:
    """Settle in every way and claim; crash at times, and lose an answer at times."""
    asyncio.run(_take_turns(place, ledger, turns))


async def _take_turns(place: Place, ledger: Ledger, turns: int) -> None:
    async with at_work(place.open(), lease=15, beat=3) as claimer:
        held: Sequence[Claimed] = ()
        for _ in range(turns):
            if len(held) < BATCH:
                await refill(claimer.engine)
            chance = random.random()
            if chance < CRASH:
                held = await crash(claimer)
            elif chance < CRASH + IN_DOUBT:
                held = await in_doubt(claimer)
            else:
                held = (await claimer.turn(BATCH, [outcome(job) for job in held])).claimed
        ledger.write("turns", (turns, 0))


def outcome(job: Claimed) -> Settle:
    (change,) = random.choices(list(OUTCOMES), list(OUTCOMES.values()))
    return Settle(job.lease, change)


async def refill(engine: Engine) -> None:
    """More jobs, some of them with keys: few enough at a time that everyone meets everyone."""
    keyed = [NewJob("task", unique_key=str(random.getrandbits(40))) for _ in range(BATCH // 2)]
    await engine.arun(jobs.add_many([NewJob("task", max_attempts=1_000)] * BATCH + keyed))


async def crash(claimer: Claimer) -> list[Claimed]:
    """What the claimer holds is recovered while it goes on under a new name."""
    old, claimer.lane.worker = claimer.lane.worker, await enlist(claimer.engine, new_name(), lease=15, beat=3)
    recovered = claimer.engine.arun(workers.recover(known=[old]))
    return (await asyncio.gather(claimer.turn(BATCH), recovered))[0].claimed


async def in_doubt(claimer: Claimer) -> list[Claimed]:
    """The answer of the last claim was lost: it is handed back while the lane goes on."""
    lane = claimer.lane
    back = claimer.engine.arun(workers.hand_back([lane.worker], [(lane.worker, lane.number)], []))
    return (await asyncio.gather(back, claimer.turn(BATCH)))[1].claimed


def operate(place: Place, stop: Flag) -> None:
    """Cancel and retry whatever there is, running or not, in batches."""
    engine = place.open()
    while not stop.is_set():
        ids = [JobId(row[0]) for row in Actors(engine).sql("select id from dibs.jobs order by random() limit 15")]
        engine.run(jobs.cancel(ids))
        engine.run(jobs.cancel_matching(Filter(state=JobState.RUNNING, type="task"))) if random.random() < 0.1 else None
        engine.run(jobs.retry_matching(Filter()))
        time.sleep(random.uniform(0.0, 0.02))
    engine.close()


def without_a_deadlock(kind: str, turns: int, places: Places, crew: Crew, ledger: Ledger) -> None:
    place, engine = places.fresh(kind)
    stop = crew.flag("stop")
    operator = crew.start(operate, place, stop)
    claimers = [crew.start(take_turns, place, ledger, turns // CLAIMERS) for _ in range(CLAIMERS)]
    for claimer in claimers:
        claimer.join()
    stop.set()
    operator.join()
    crew.join()
    assert [entry.job for entry in ledger.entries()] == [turns // CLAIMERS] * CLAIMERS
    assert deadlocks(engine) == 0, reports(engine)


def deadlocks(engine: Engine) -> int:
    """How many the server has broken in this database. Its processes tell when they end, so they must have ended."""
    return int(Actors(engine).sql("select deadlocks from pg_stat_database where datname = current_database()")[0][0])


def reports(engine: Engine) -> str:
    """What the server wrote about them: who waited for whom, doing what. Its log is beside its data."""
    [(data,)] = Actors(engine).sql("show data_directory")
    return "".join(re.findall(r".*ERROR:  deadlock detected\n(?:.*\n){6}", (Path(data).parent / "log").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres18", *long("postgres16", "postgres-system")])
def test_turns_do_not_deadlock(kind: str, places: Places, crew: Crew, ledger: Ledger) -> None:
    without_a_deadlock(kind, 3_000, places, crew, ledger)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["postgres18", *long("postgres-system")])
def test_twenty_thousand_turns_do_not_deadlock(kind: str, places: Places, crew: Crew, ledger: Ledger) -> None:
    without_a_deadlock(kind, 20_000, places, crew, ledger)


def add_keys(place: Place, start: Barrier) -> None:
    """Add the same keys as everyone else at the same moment, in an order of one's own."""
    engine = place.open()
    for number in range(ROUNDS):
        keys = random.sample(range(KEYS), KEYS)
        start.wait()
        engine.run(jobs.add_keyed([NewJob("task", unique_key=f"{number} {key}") for key in keys]))
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres18", *long("postgres16", "postgres-system")])
def test_the_same_keys_in_any_order_do_not_deadlock(kind: str, places: Places, crew: Crew) -> None:
    place, engine = places.fresh(kind)
    start = CONTEXT.Barrier(4, timeout=30)
    for _ in range(4):
        crew.start(add_keys, place, start)
    crew.join()
    assert Actors(engine).sql("select count(*) from dibs.jobs") == [(KEYS * ROUNDS,)]
    assert deadlocks(engine) == 0, reports(engine)
