"""Does a claim take longer after ten minutes at a thousand jobs a second, in and out, under a held snapshot?

Two producers add jobs one by one, as applications do; one claimer keeps up by turns, and hears of late ones.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from benchmarks.claimer import Claimer, settled
from benchmarks.loops import NOTE, open_engine
from benchmarks.places import Bench, checkpoint, held_snapshot
from benchmarks.race import CONTEXT, running
from benchmarks.report import Bound, Figure
from dibs.engines.engine import Engine
from dibs.job import Claimed, NewJob
from dibs.operations import jobs
from dibs.payload import encode

SECONDS = (600, 60)
WINDOWS = 10  # a minute each, in full
RATE, PRODUCERS = 1_000, 2
BATCH, PAUSE = 200, 0.005
REQUIRED = Bound(2, at_most=True)
JOB = NewJob("noop", encode({"i": 1, "note": NOTE}))


@dataclass(frozen=True, slots=True)
class Timed:
    """How long something took, and when it was; both in seconds."""

    at: float
    seconds: float


def measure(bench: Bench) -> Iterator[Figure]:
    """One run: its length is what it is about."""
    seconds = bench.size(*SECONDS)
    with bench.database() as url, held_snapshot(url):
        turns, waits = _run(url, seconds)
    began = turns[0].at
    for what, timed, bound in (("turn", turns, REQUIRED), ("commit to claim", waits, REQUIRED)):
        windows = _windows(timed, began, seconds / WINDOWS)
        for number, window in enumerate(windows):
            bench.say(f"steady: {what}, window {number + 1}: {_spread(window)}, {len(window):,} of them")
        ratio = quantile(windows[-1], 0.99) / quantile(windows[0], 0.99)
        title = f"{what}, p99 of the last {seconds // WINDOWS} s of {seconds} beside the first"
        yield Figure(title, (ratio,), bound, ours=f"last {_spread(windows[-1])}", floor=f"first {_spread(windows[0])}")
    yield Figure("jobs a second, in and out", (len(waits) / seconds,), Bound(0.95 * RATE))


def _run(url: str, seconds: int) -> tuple[list[Timed], list[Timed]]:
    """Every turn, and for every job the time from its commit to its claim."""
    engine = open_engine(url)
    engine.migrate()
    checkpoint(url)
    stop, answers = CONTEXT.Event(), CONTEXT.Queue()
    producers = [CONTEXT.Process(target=_produce, args=(url, stop, answers), daemon=True) for _ in range(PRODUCERS)]
    with running(producers):
        turns, claimed = _claim(engine, seconds)
        stop.set()
        added = {job_id: at for _ in producers for job_id, at in answers.get(timeout=60)}
    engine.close()
    waits = [Timed(at, max(claimed[job_id] - at, 0.0)) for job_id, at in added.items() if job_id in claimed]
    return turns, sorted(waits, key=lambda wait: wait.at)


def _claim(engine: Engine, seconds: int) -> tuple[list[Timed], dict[int, float]]:
    claimer = Claimer(engine)
    turns: list[Timed] = []
    claimed: dict[int, float] = {}
    rows: list[Claimed] = []
    while not claimed:  # the producers are on their way
        rows = claimer.claim(BATCH)
        claimed.update((job.id, time.monotonic()) for job in rows)
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        settles = [settled(job) for job in rows]
        before = time.monotonic()
        rows = claimer.turn(settles, BATCH)
        now = time.monotonic()
        turns.append(Timed(before, now - before))
        claimed.update((job.id, now) for job in rows)
        if len(rows) < BATCH:
            time.sleep(PAUSE)
    claimer.settle([settled(job) for job in rows])
    claimer.close()
    return turns, claimed


def _produce(url: str, stop: Any, answers: Any) -> None:
    engine, added, due = open_engine(url), [], time.monotonic()
    while not stop.is_set():
        job_id = engine.run(jobs.add(JOB)).id
        added.append((int(job_id), time.monotonic()))
        due = max(due + PRODUCERS / RATE, time.monotonic() - 1)  # an outage of a second at most is made up for
        time.sleep(max(due - time.monotonic(), 0))
    engine.close()
    answers.put(added)


def _windows(timed: Sequence[Timed], began: float, width: float) -> list[list[float]]:
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    for one in timed:
        number = int((one.at - began) / width)
        if 0 <= number < WINDOWS:
            windows[number].append(one.seconds)
    return windows


def _spread(seconds: Sequence[float]) -> str:
    return f"p50 {quantile(seconds, 0.5) * 1e3:.1f} ms, p99 {quantile(seconds, 0.99) * 1e3:.1f} ms"


def quantile(values: Sequence[float], part: float) -> float:
    """The value that so large a part is below; of nothing, infinity: it never came.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    return sorted(values)[int(len(values) * part)] if values else inf
