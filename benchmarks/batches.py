"""What does a batch cost: adding its jobs, counting them and finishing it, beside the same jobs without one?

Both sides add by the same way, in laps that alternate, and settle in slices that do. When all is done the batch
must be finished, its counts exact, and its completion job there once.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from benchmarks.loops import Dibs, new_jobs, open_engine
from benchmarks.places import Bench, checkpoint
from benchmarks.race import Laps, Plan, race
from benchmarks.report import Bound, Figure, rate
from dibs.job import NewJob
from dibs.operations import batches, jobs
from dibs.operations.jobs import Filter
from dibs.payload import encode

TOGETHER = (20_000, 4_000)  # jobs in one transaction
BATCH = 200  # jobs in a turn
WHOLE = {"postgres": ((100, 10_000), (12, 4_000)), "sqlite": ((100, 10_000), (12, 4_000))}  # slices, and jobs in each
SHARED = ((20, 16_000), (8, 8_000))
CLAIMERS = 8
COSTS, KEEPS = Bound(1.15, at_most=True), Bound(0.85)
NAMES = ("plain", "batch")
HOOK = {
    "hook": "on_complete",
    "queue": "hooks",
    "rank": 4,
    "type": "completed",
    "run_at": None,
    "delay": 0,
    "max_attempts": 3,
    "payload": None,
    "tags": None,
    "submits": False,
}


def measure(bench: Bench) -> Iterator[Figure]:
    """The whole of it on both engines, and many who settle one batch."""
    for engine in WHOLE:
        slices, count = WHOLE[engine][bench.quick]
        title = f"{engine}, {(slices + 1) * count:,} jobs"
        if bench.wants(title):
            yield from _whole(bench, engine, title, Plan(1, slices, count))
    title = f"postgres, {CLAIMERS} processes settle one batch"
    if bench.wants(title):
        plan = Plan(CLAIMERS, *SHARED[bench.quick])
        rounds = [_round(bench, "postgres", title, plan)[1] for _ in range(bench.rounds)]
        yield _ratio(f"{title}: their rate beside no batch", rounds, KEEPS)


def _whole(bench: Bench, engine: str, title: str, plan: Plan) -> Iterator[Figure]:
    rounds = [_round(bench, engine, title, plan) for _ in range(bench.rounds)]
    costs = tuple(_cost(added, laps) for added, laps in rounds)
    yield Figure(f"{title}: time with a batch, beside without", costs, COSTS)
    adding = tuple(1 / added["batch"].ratio(added["plain"]) for added, _ in rounds)
    ours, theirs = (rate(median(added[name].rate for added, _ in rounds)) for name in reversed(NAMES))
    yield Figure(f"{title}: time to add them, beside without", adding, ours=ours, floor=theirs)
    yield _ratio(f"{title}: rate of claim and settle, beside without", [laps for _, laps in rounds], None)


def _cost(added: dict[str, Laps], settled: dict[str, Laps]) -> float:
    """Adding and settling a job with a batch, beside without."""
    plain = [1 / each["plain"].rate for each in (added, settled)]
    ratios = [each["batch"].ratio(each["plain"]) for each in (added, settled)]
    return sum(time / ratio for time, ratio in zip(plain, ratios, strict=True)) / sum(plain)


def _ratio(what: str, rounds: Sequence[dict[str, Laps]], bound: Bound | None) -> Figure:
    ratios = tuple(laps["batch"].ratio(laps["plain"]) for laps in rounds)
    ours, theirs = (rate(median(laps[name].rate for laps in rounds)) for name in reversed(NAMES))
    return Figure(what, ratios, bound, ours=ours, floor=theirs)


def _round(bench: Bench, engine: str, title: str, plan: Plan) -> tuple[dict[str, Laps], dict[str, Laps]]:
    """The laps of adding, and of settling, of each."""
    bench.say(f"batches: {title}")
    with _places(bench, engine) as places:
        count = (plan.slices + 1) * plan.jobs  # one slice warms up
        added = _fill(places, count, bench.size(*TOGETHER))
        if engine == "postgres":
            checkpoint(places["plain"].url)
        laps = race([places[name] for name in NAMES], plan)
        _check(places["batch"], count)
    return added, laps


@contextmanager
def _places(bench: Bench, engine: str) -> Iterator[dict[str, Dibs]]:
    """Two schemas of one database, or two files."""
    with ExitStack() as stack:
        if engine == "postgres":
            url = stack.enter_context(bench.database())
            yield {name: Dibs(name, url, BATCH, schema=name) for name in NAMES}
        else:
            yield {name: Dibs(name, stack.enter_context(bench.file(name)), BATCH) for name in NAMES}


def _fill(places: dict[str, Dibs], count: int, together: int) -> dict[str, Laps]:
    """Add as many to both, in turns; the first lap warms up."""
    engines = {name: open_engine(place.url, place.schema) for name, place in places.items()}
    for engine in engines.values():
        engine.migrate()
    batch = engines["batch"].run(batches.begin(None, encode([HOOK])))
    laps = {name: Laps(together) for name in NAMES}
    for lap, left in enumerate(range(count, 0, -together)):
        new = new_jobs(min(together, left))
        for name in NAMES if lap % 2 else reversed(NAMES):
            seconds = _timed(engines[name], name, batch, new)
            if lap and len(new) == together:
                laps[name].seconds.append(seconds)
    engines["batch"].run(batches.close(batch))
    for engine in engines.values():
        engine.close()
    return laps


def _timed(engine: object, name: str, batch: int, new: list[NewJob]) -> float:
    operation = batches.add(batch, new) if name == "batch" else jobs.add_many(new)
    began = time.perf_counter()
    engine.run(operation)  # type: ignore[attr-defined]  # an Engine
    return time.perf_counter() - began


def _check(place: Dibs, count: int) -> None:
    engine = open_engine(place.url, place.schema)
    ((progress,), hooks) = engine.run(batches.page()).batches, engine.run(jobs.page(Filter(queue="hooks"))).jobs
    engine.close()
    if (progress.total, progress.successful, progress.state) != (count, count, "FINISHED"):
        raise AssertionError(f"the batch is not as it has to be: {progress}")
    if [job.payload for job in hooks] != [{"batch_id": progress.id}]:
        raise AssertionError(f"its completion is there {len(hooks)} times")
