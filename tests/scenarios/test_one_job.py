"""Ten processes, one job: exactly one of them gets it, round after round."""

from collections import Counter
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError

import pytest

from tests.actors import Actors
from tests.scenarios.crew import CONTEXT, Crew
from tests.scenarios.ledger import Ledger
from tests.scenarios.places import Place, Places, long

PROCESSES = 10
ROUNDS = 200


def race(place: Place, ledger: Ledger, start: Barrier, end: Barrier) -> None:
    """Claim at the same moment as everyone else; whoever has the job finishes it after everyone has tried."""
    engine = place.open()
    try:
        worker = Actors(engine).worker()
        for _ in range(ROUNDS):
            start.wait()
            claimed = worker.claim(1)
            ledger.write("claimed", *[(job.id, job.token) for job in claimed])
            end.wait()
            for job in claimed:
                worker.succeed(job)
        engine.close()
    except BaseException:
        start.abort()
        end.abort()
        raise


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["sqlite", "sqlite-classic", "postgres18", *long("postgres16", "postgres-system", "pgbouncer")]
)
def test_one_of_ten_processes_claims_a_job(kind: str, places: Places, crew: Crew, ledger: Ledger) -> None:
    start, end = CONTEXT.Barrier(PROCESSES + 1, timeout=30), CONTEXT.Barrier(PROCESSES + 1, timeout=30)
    place, engine = places.fresh(kind)
    for _ in range(PROCESSES):
        crew.start(race, place, ledger, start, end)
    jobs = []
    try:
        for _ in range(ROUNDS):
            jobs.append(Actors(engine).add())
            start.wait()
            end.wait()
    except BrokenBarrierError:
        crew.check()
        raise
    crew.join()
    claims = list(ledger.entries())
    assert Counter(claim.job for claim in claims) == Counter(jobs)
    assert len({claim.process for claim in claims}) > 1
