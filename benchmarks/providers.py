"""What do 100,000 jobs cost that are with their providers: an idle worker, and a claim of those that are due?"""

import time
from collections.abc import Iterator
from statistics import median

from benchmarks.loops import open_engine
from benchmarks.places import Bench
from benchmarks.report import Bound, Figure
from benchmarks.workers import idle_cost, place_of
from dibs.engines.engine import Engine
from dibs.job import NewJob, WorkerId
from dibs.ladder import START
from dibs.lifecycle import Back, Way
from dibs.operations import claims, jobs, workers
from dibs.operations.claims import Settle, Want
from dibs.payload import encode

PROCESSING = (100_000, 10_000)
DUE, TRIES = 10, 50
AN_HOUR = 3600.0
RANGES = [("default", rank, *START) for rank in range(20)]


def measure(bench: Bench) -> Iterator[Figure]:
    """On both engines, beside an empty database in the same run."""
    count = bench.size(*PROCESSING)
    for kind in ("postgres", "sqlite"):
        if bench.wants(f"{kind}, idle"):
            yield _idle(bench, kind, count)
        if bench.wants(f"{kind}, due"):
            yield _due(bench, kind, count)


def _idle(bench: Bench, kind: str, count: int) -> Figure:
    beside, alone = [], []
    for _ in range(bench.rounds):
        for waiting, costs in ((count, beside), (0, alone)):
            with place_of(bench, kind) as place:
                engine = open_engine(place)
                engine.migrate()
                fill(engine, waiting)
                engine.close()
                costs.append(idle_cost(bench, place)[0])
    ratios = tuple(one / other for one, other in zip(beside, alone, strict=True))
    shown = f"{100 * median(beside):.2f} % of a core", f"{100 * median(alone):.2f} %"
    return Figure(
        f"{kind}, idle workers: beside {count:,} with providers", ratios, Bound(1.25, at_most=True), "", *shown
    )


def _due(bench: Bench, kind: str, count: int) -> Figure:
    """Milliseconds for a claim that finds what is due, and for nothing else."""
    with place_of(bench, kind) as place:
        engine = open_engine(place)
        engine.migrate()
        fill(engine, count)
        worker = WorkerId(7)
        engine.run(workers.enlist(worker, "asks", lease=3600.0, beat=60.0))
        found = [_asked(engine, worker, number) for number in range(1, TRIES + 1)]
        engine.close()
    return Figure(
        f"{kind}, {DUE} due of {count:,}: found within", (1000 * median(found),), Bound(5, at_most=True), " ms"
    )


def _asked(engine: Engine, worker: WorkerId, number: int) -> float:
    added = engine.run(jobs.add_many([NewJob("ask", encode({}), submits=True)] * DUE))
    began = time.perf_counter()
    turn = engine.run(claims.turn(Want(worker, number, DUE, RANGES)))
    seconds = time.perf_counter() - began
    assert sorted(job.id for job in turn.claimed) == added
    engine.run(claims.settle([Settle(job.lease, Back(Way.POLL, AN_HOUR)) for job in turn.claimed]))
    return seconds


def fill(engine: Engine, count: int) -> None:
    """So many jobs that are to be asked after in an hour."""
    worker = WorkerId(1)
    engine.run(workers.enlist(worker, "fills", lease=3600.0, beat=60.0))
    engine.run(jobs.add_many([NewJob("ask", encode({}), submits=True)] * count))
    for number in range(1, count // 1000 + 1):
        turn = engine.run(claims.turn(Want(worker, number, 1000, RANGES)))
        engine.run(claims.settle([Settle(job.lease, Back(Way.POLL, AN_HOUR)) for job in turn.claimed]))
    engine.run(workers.leave([worker]))
