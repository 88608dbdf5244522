"""Do claims, pages and counts slow down with a million waiting, a million due tomorrow and five million finished?"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import psycopg

from benchmarks.loops import Dibs, fill, open_engine
from benchmarks.places import Bench, checkpoint
from benchmarks.race import Laps, Plan, race
from benchmarks.report import Bound, Figure, rate
from dibs.engines.engine import Engine
from dibs.job import JobState
from dibs.operations import jobs, queues
from dibs.operations.jobs import Filter, Page

WAITING, TOMORROW, FINISHED = (1_000_000, 50_000), (1_000_000, 50_000), (5_000_000, 250_000)
SLICES, SLICE = 20, (2_000, 200)
RATE = Bound(0.85)
READ = Bound(50, at_most=True)
READS = 15
TOP = 0  # the rank of priority 9

FILL_TOMORROW = """
insert into dibs.jobs (queue, rank, type, run_at, payload)
select 'default', %s, 'noop', statement_timestamp() + interval '1 day' + i * interval '1 ms',
  jsonb_build_object('i', i, 'note', repeat('x', 60)) from generate_series(1, %s) i
"""
FILL_FINISHED = """
insert into dibs.history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
  attempts, max_attempts, crashes, queue, type, payload)
select nextval('dibs.job_id'), at, at, at, at, (at at time zone 'utc')::date + 7, 1, 1, 2, 4, 3,
  1, 3, 0, 'default', 'noop', jsonb_build_object('i', i, 'note', repeat('x', 60))
from generate_series(1, %(count)s) i
cross join lateral (select statement_timestamp() - interval '7 days' * (1 - i / %(count)s::float8) as at) t
"""
PAGES = {
    "newest": Filter(),
    "waiting": Filter(state=JobState.PENDING),
    "running, of which there are few": Filter(state=JobState.RUNNING),
    "of a type that there is not": Filter(type="missing"),
    "of a tag that there is not": Filter(tag="missing"),
    "finished, of a queue that there is not": Filter(state=JobState.SUCCESSFUL, queue="missing"),
    "failed, of which there are none": Filter(state=JobState.FAILED),
}


def measure(bench: Bench) -> Iterator[Figure]:
    """Claims beside an empty database, then what people look at."""
    plan = Plan(1, SLICES, bench.size(*SLICE))
    with bench.database() as grown, bench.database() as empty:
        _grow(bench, grown)
        fill(empty, 2 * plan.needed * bench.rounds)
        checkpoint(grown)
        for batch in (200, 10):
            bench.say(f"growth: batch {batch}")
            yield _claims(bench, grown, empty, batch, plan)
        engine = open_engine(grown)
        yield from _reads(bench, engine)
        engine.close()


def _grow(bench: Bench, url: str) -> None:
    bench.say("growth: filling")
    finished, waiting, tomorrow = bench.size(*FINISHED), bench.size(*WAITING), bench.size(*TOMORROW)
    engine = open_engine(url)
    engine.migrate()
    engine.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FILL_FINISHED, {"count": finished})
        connection.execute(FILL_TOMORROW, [TOP, tomorrow])
        connection.execute("vacuum analyze dibs.history")
    fill(url, waiting)


def _claims(bench: Bench, grown: str, empty: str, batch: int, plan: Plan) -> Figure:
    contestants = [Dibs("empty", empty, batch), Dibs("grown", grown, batch)]
    rounds: list[dict[str, Laps]] = [race(contestants, plan) for _ in range(bench.rounds)]
    ratios = tuple(laps["grown"].ratio(laps["empty"]) for laps in rounds)
    ours, theirs = (rate(median(laps[name].rate for laps in rounds)) for name in ("grown", "empty"))
    what = f"claim and settle, batch {batch}, of an almost empty database"
    return Figure(what, ratios, RATE, ours=f"{ours} grown", floor=f"{theirs} empty")


def _reads(bench: Bench, engine: Engine) -> Iterator[Figure]:
    for what, wanted in PAGES.items():
        bench.say(f"growth: page, {what}")
        yield _read(f"page of 50, {what}", partial(_page, engine, wanted))
    yield _read("counts of every queue", lambda: engine.run(queues.counts("dibs")))


def _page(engine: Engine, wanted: Filter) -> Page:
    return engine.run(jobs.page(wanted))


def _read(what: str, read: Callable[[], object]) -> Figure:
    """The median; the first of them finds cold pages, as people do."""
    times = []
    for _ in range(READS):
        began = time.perf_counter()
        read()
        times.append(1e3 * (time.perf_counter() - began))
    return Figure(what, (median(times),), READ, " ms", ours=f"first {times[0]:.1f} ms, worst {max(times):.1f} ms")
