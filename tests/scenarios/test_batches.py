"""Batches settled by many processes at once, some of them killed: counts stay exact, and completions come once."""

import asyncio
import random
import time

import pytest

from dibs.engines.engine import Engine
from dibs.job import Claimed, NewJob
from dibs.operations import batches
from dibs.payload import encode
from tests.actors import Actors
from tests.conformance.test_batches import HOOKS
from tests.scenarios.claimer import at_work
from tests.scenarios.crew import Crew, until
from tests.scenarios.ledger import Ledger
from tests.scenarios.places import Place, Places, long
from tests.scenarios.test_deadlocks import deadlocks, operate, outcome, reports
from tests.scenarios.test_killed_claimers import ATTEMPTS, QUICK, claim_and_run, judge

CLAIMERS, KILLS = 4, 12
GROUPS, PARTS, JOBS = 30, 3, 8  # batches, their parts, and the jobs in each part
LIFE = (0.05, 0.25)
TURNS, SIZE = 1_200, 10


def begin(engine: Engine, parts: int = PARTS, jobs: int = JOBS, attempts: int = ATTEMPTS) -> int:
    """A batch that is closed, in several parts."""
    batch = engine.run(batches.begin(None, HOOKS))
    for _ in range(parts):
        engine.run(batches.add(batch, [NewJob("task", encode({"n": n}), max_attempts=attempts) for n in range(jobs)]))
    engine.run(batches.close(batch))
    return batch


def completions(actors: Actors) -> list[int]:
    """Of which batches, in order."""
    text = (
        "(payload ->> 'batch_id')::int" if actors.engine.name == "postgres" else "json_extract(payload, '$.batch_id')"
    )
    return [row[0] for row in actors.sql(f"select {text} from dibs.jobs where type = 'completed' order by 1")]


COUNTED = """
select p.batch, sum(p.total), sum(p.successful), sum(p.failed), sum(p.cancelled) from dibs.parts p group by 1 order by 1
"""
THERE = """
select p.batch, count(*), sum(case when a.state = 3 then 1 else 0 end), sum(case when a.state = 4 then 1 else 0 end),
  sum(case when a.state = 5 then 1 else 0 end)
from (
  select part, state from dibs.history union all select part, state from dibs.dead
  union all select part, 0 from dibs.jobs) a
join dibs.parts p on p.id = a.part group by 1 order by 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres18", *long("sqlite-classic", "postgres16", "postgres-system")])
def test_killed_claimers_finish_every_batch_once(kind: str, places: Places, crew: Crew, ledger: Ledger) -> None:
    place, engine = places.fresh(kind)
    actors, stop = Actors(engine), crew.flag("stop")
    ids = [begin(engine) for _ in range(GROUPS)]
    crew.start(judge, place, QUICK, stop)
    claimers = [crew.start(claim_and_run, place, ledger, QUICK, stop) for _ in range(CLAIMERS)]
    for _ in range(KILLS):
        time.sleep(random.uniform(*LIFE))
        crew.kill(claimers.pop(0))
        claimers.append(crew.start(claim_and_run, place, ledger, QUICK, stop))
    waiting = "select count(*) from dibs.jobs where type = 'task'"
    until(lambda: actors.sql(waiting) == [(0,)], crew, "all jobs ran", QUICK.healing)
    stop.set()
    crew.join()
    assert completions(actors) == ids
    assert actors.sql(COUNTED) == actors.sql(THERE) == [(batch, PARTS * JOBS, PARTS * JOBS, 0, 0) for batch in ids]


def take_turns(place: Place, ledger: Ledger, turns: int) -> None:
    """Settle in every way, claim, and begin more batches."""
    asyncio.run(_take_turns(place, ledger, turns))


async def _take_turns(place: Place, ledger: Ledger, turns: int) -> None:
    async with at_work(place.open(), lease=15, beat=3) as claimer:
        held: list[Claimed] = []
        for _ in range(turns):
            if len(held) < SIZE:
                await asyncio.to_thread(begin, claimer.engine, 4, 5, 1_000)
            held = (await claimer.turn(SIZE, [outcome(job) for job in held])).claimed
        ledger.write("turns", (turns, 0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres18", *long("postgres16", "postgres-system")])
def test_turns_cancels_and_retries_of_batches_do_not_deadlock(
    kind: str, places: Places, crew: Crew, ledger: Ledger
) -> None:
    place, engine = places.fresh(kind)
    actors, stop = Actors(engine), crew.flag("stop")
    operator = crew.start(operate, place, stop)
    claimers = [crew.start(take_turns, place, ledger, TURNS // CLAIMERS) for _ in range(CLAIMERS)]
    for claimer in claimers:
        claimer.join()
    stop.set()
    operator.join()
    crew.join()
    assert len(list(ledger.entries())) == CLAIMERS
    assert deadlocks(engine) == 0, reports(engine)
    assert actors.sql(COUNTED) == actors.sql(THERE)
    finished = [row[0] for row in actors.sql("select id from dibs.batches where finished_at is not null order by id")]
    hooks = "select distinct (payload ->> 'batch_id')::int from dibs.all_jobs where type = 'completed' order by 1"
    assert finished
    assert [row[0] for row in actors.sql(hooks)] == finished
    twice = "select count(*) - count(distinct payload) from dibs.all_jobs where type = 'completed'"
    assert actors.sql(twice) == [(0,)]
