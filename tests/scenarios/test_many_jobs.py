"""Eight processes, twenty thousand jobs: every job is claimed once, none is lost."""

import asyncio
from collections import Counter

import pytest

from dibs.operations import claims
from dibs.operations.claims import Settle
from tests.actors import Actors
from tests.scenarios.claimer import at_work, success
from tests.scenarios.crew import Crew, Flag
from tests.scenarios.ledger import Ledger
from tests.scenarios.places import Place, Places, long

PROCESSES = 8
JOBS = 20_000
CHUNK = 2_000
BATCH = 50


def claim_all(place: Place, ledger: Ledger, all_added: Flag) -> None:
    """Claim and settle in turns until nothing is left and nothing more will come."""
    asyncio.run(_claim_all(place, ledger, all_added))


async def _claim_all(place: Place, ledger: Ledger, all_added: Flag) -> None:
    async with at_work(place.open(), lease=15, beat=3) as claimer:
        settles: list[Settle] = []
        finished = False
        while not finished:
            last = all_added.is_set()
            turn = await claimer.turn(BATCH, settles)
            assert not turn.lost
            ledger.write("claimed", *[(job.id, job.token) for job in turn.claimed])
            settles = [success(job.lease) for job in turn.claimed]
            if not settles:
                finished = last and await claimer.engine.arun(claims.next_due(["default"])) is None
                await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres18", *long("sqlite-classic", "postgres16", "postgres-system")])
def test_every_job_is_claimed_once(kind: str, places: Places, crew: Crew, ledger: Ledger) -> None:
    all_added = crew.flag("all-added")
    place, engine = places.fresh(kind)
    actors = Actors(engine)
    jobs = actors.add_many(CHUNK)
    for _ in range(PROCESSES):
        crew.start(claim_all, place, ledger, all_added)
    while len(jobs) < JOBS:
        jobs += actors.add_many(CHUNK)
    all_added.set()
    crew.join()
    [(left,)], [(finished,)] = [actors.sql(f"select count(*) from dibs.{table}") for table in ("jobs", "history")]
    entries = list(ledger.entries())
    assert Counter(claim.job for claim in entries) == Counter(jobs)
    assert (left, finished) == (0, JOBS)
    assert len({claim.process for claim in entries}) > 1
