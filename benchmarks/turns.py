"""How fast are claim and settle, apart and in one turn, beside the floor? And does a turn ever end in a deadlock?"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from statistics import median

import psycopg

from benchmarks import floor
from benchmarks.loops import Dibs, Floor, Way, fill
from benchmarks.places import Bench, checkpoint
from benchmarks.race import Contestant, Laps, Plan, race
from benchmarks.report import Bound, Figure, rate

BATCHES = (200, 10, 1)
WAYS: tuple[Way, ...] = ("separate", "turn")
TITLES = {"separate": "claim, then settle", "turn": "in one turn"}
REQUIRED = {
    "postgres": {"separate": {200: 0.9, 10: 0.9, 1: 0.9}, "turn": {200: 1.05, 10: 1.2, 1: 1.3}},
    "sqlite": {"separate": {200: 0.75, 10: 0.8, 1: 0.75}, "turn": {200: 0.8, 10: 1.0, 1: 1.0}},
}
SLICES = {200: (4_000, 1_000), 10: (1_000, 200), 1: (200, 40)}  # jobs in a slice, full and quick
COUNT = (20, 12)  # slices
CLAIMERS = (1, 4)
WAL_BYTES, CPU_MICROSECONDS = 850, 25
STORM_TURNS, STORM_BATCH, STORM_CLAIMERS = 20_000, 10, 4

Round = dict[str, Laps]


def measure(bench: Bench) -> Iterator[Figure]:
    """Every batch, one claimer and four, on both engines; then the storm."""
    for engine, claimers, batch in product(REQUIRED, CLAIMERS, BATCHES):
        title = f"{engine}, batch {batch}, {claimers} claimer{'s' if claimers > 1 else ''}"
        if not bench.wants(title):
            continue
        bench.say(f"turns: {title}")
        rounds = [_round(bench, engine, batch, claimers) for _ in range(bench.rounds)]
        alone = engine == "sqlite" and claimers > 1  # who writes, writes alone: told, and nothing is promised of it
        for way in WAYS:
            bound = None if alone else Bound(REQUIRED[engine][way][batch])
            yield _ratio(f"{title}, {TITLES[way]}", way, rounds, bound)
        if batch == 200 and claimers == 1:
            yield from _costs(title, engine, rounds)
    if bench.wants("deadlocks"):
        yield _storm(bench)


def _round(bench: Bench, engine: str, batch: int, claimers: int) -> Round:
    plan = Plan(claimers, bench.size(*COUNT), bench.size(*SLICES[batch]) * claimers)
    with _postgres(bench, batch, plan) if engine == "postgres" else _sqlite(bench, batch, plan) as (contestants, url):
        return race(contestants, Plan(plan.claimers, plan.slices, plan.jobs, url))


@contextmanager
def _postgres(bench: Bench, batch: int, plan: Plan) -> Iterator[tuple[list[Contestant], str]]:
    """The floor and each way, in a schema of its own of one database."""
    with bench.database() as url:
        floor.fill_postgres(url, plan.needed)
        for way in WAYS:
            fill(url, plan.needed, schema=way)
        checkpoint(url)
        yield [Floor(url, batch), *(Dibs(way, url, batch, way, schema=way) for way in WAYS)], url


@contextmanager
def _sqlite(bench: Bench, batch: int, plan: Plan) -> Iterator[tuple[list[Contestant], None]]:
    """The floor and each way, in a file of its own."""
    with ExitStack() as files:
        paths = {name: files.enter_context(bench.file(name)) for name in ("floor", *WAYS)}
        floor.fill_sqlite(paths["floor"], plan.needed)
        for way in WAYS:
            fill(paths[way], plan.needed)
        yield [Floor(paths["floor"], batch), *(Dibs(way, paths[way], batch, way) for way in WAYS)], None


def _ratio(what: str, way: str, rounds: Sequence[Round], bound: Bound | None) -> Figure:
    ratios = tuple(laps[way].ratio(laps["floor"]) for laps in rounds)
    ours, theirs = (rate(median(laps[name].rate for laps in rounds)) for name in (way, "floor"))
    return Figure(what, ratios, bound, ours=ours, floor=theirs)


def _costs(title: str, engine: str, rounds: Sequence[Round]) -> Iterable[Figure]:
    for way in WAYS:
        what = f"{title}, {TITLES[way]}"
        ours, theirs = (_cpu(rounds, name) for name in (way, "floor"))
        yield _cost(f"{what}: client CPU a job", ours, theirs, Bound(CPU_MICROSECONDS, at_most=True), " us")
        if engine == "postgres":
            ours, theirs = (_wal(rounds, name) for name in (way, "floor"))
            yield _cost(f"{what}: log written a job", ours, theirs, Bound(WAL_BYTES, at_most=True), " B")


def _cpu(rounds: Sequence[Round], name: str) -> tuple[float, ...]:
    return tuple(1e6 * sum(laps[name].cpu) / laps[name].total for laps in rounds)


def _wal(rounds: Sequence[Round], name: str) -> tuple[float, ...]:
    return tuple(sum(laps[name].wal) / laps[name].total for laps in rounds)


def _cost(what: str, ours: tuple[float, ...], theirs: tuple[float, ...], bound: Bound, unit: str) -> Figure:
    return Figure(what, ours, bound, unit, floor=f"{median(theirs):,.1f}{unit}")


def _storm(bench: Bench) -> Figure:
    """Turns of any size by four claimers, some jobs retried and some handed back: the server counts deadlocks."""
    turns = bench.size(STORM_TURNS, STORM_TURNS // 10)
    bench.say(f"turns: {turns:,} turns of {STORM_CLAIMERS} claimers")
    plan = Plan(STORM_CLAIMERS, 10, turns * STORM_BATCH // 8)
    with bench.database() as url:
        fill(url, plan.needed, priorities=2)
        storm = Dibs("storm", url, STORM_BATCH, retried=20, released=2, mixed=True)
        laps = race([storm], plan)["storm"]
        deadlocks = _deadlocks(url)
    what = f"postgres, deadlocks in {laps.turns:,} turns of {STORM_CLAIMERS} claimers"
    return Figure(what, (deadlocks,), Bound(0, at_most=True), ours=rate(laps.rate))


def _deadlocks(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
        return int(row[0]) if row else 0
