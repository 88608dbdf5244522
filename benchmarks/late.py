"""How long does a job wait that becomes visible behind the cursor? At most max(tick, 2 L) and a tick, if it is L late.

A stream keeps the cursor at the present, a snapshot is held, and nobody listens: only looks find what came late. Late
are transactions that commit up to three seconds after their first statement, and jobs handed back, which keep their
time; not late, but in a range that nobody asks between ticks, is the first job of a higher priority. Claimers share the
looks, and one that has no room for jobs must not keep the others from finding them: they have a beat more to notice.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from benchmarks.claimer import BEAT, Claimer, settled
from benchmarks.loops import PAUSE
from benchmarks.places import Bench, held_snapshot
from benchmarks.race import CONTEXT, PATIENCE, running
from benchmarks.report import Bound, Figure
from benchmarks.steady import quantile
from dibs.engines.postgres.connection import carry
from dibs.engines.postgres.engine import PostgresEngine
from dibs.job import Claimed, NewJob
from dibs.ladder import TICK
from dibs.lifecycle import Released
from dibs.operations import jobs

SECONDS = (90, 20)
LATE = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 3.0)
BULK, BULK_LATE = 2_000, 2.0
HIGHER = (6, 7, 8, 9)  # priorities
STREAM, STREAM_EVERY = 40, 0.02
BATCH, RELEASED = 200, 400  # each so many-th job is handed back once
AFTERWARDS = 2 * max(LATE) + 2.0  # seconds in which the last ones have to be claimed
PAUSE_BETWEEN = 0.05
REQUIRED = Bound(1, at_most=True)
HANDED_BACK = "handed back"
BUSY = (0, 2, 3)  # numbers of claimers, in the order in which they are without room


@dataclass(frozen=True, slots=True)
class Case:
    """How many claimers, and how many of them have room for jobs."""

    claimers: int
    busy: int = 0

    @property
    def allowance(self) -> float:
        """Seconds more than the bound: whoever is full is known by its beats."""
        return BEAT if self.busy else 0.0

    def __str__(self) -> str:
        room = f", {self.busy} of them without room" if self.busy else ""
        return f"{self.claimers} claimer{'s' if self.claimers > 1 else ''}{room}"


@dataclass(frozen=True, slots=True)
class Visible:
    """A job that became visible: when, and how long after the time it is sorted by."""

    kind: str
    id: int
    at: float
    late: float

    @property
    def bound(self) -> float:
        """How long it may wait."""
        return max(TICK, 2 * self.late) + TICK

    def wait(self, claims: Sequence[float]) -> float:
        """How long it did wait: until its first claim, or its second when it was handed back after the first.

        Its producer may come to look at the clock only after the claim: then it waited for nothing.
        """
        number = int(self.kind == HANDED_BACK)
        return max(sorted(claims)[number] - self.at, 0.0) if len(claims) > number else inf


def measure(bench: Bench) -> Iterator[Figure]:
    """One claimer; four that share the looks; four of which three are full."""
    for case in (Case(1), Case(4), Case(4, busy=3)):
        if not bench.wants(str(case)):
            continue
        bench.say(f"late: {case}")
        with bench.database() as url, held_snapshot(url):
            seen, claimed = _run(url, bench.size(*SECONDS), case)
        for kind in dict.fromkeys(one.kind for one in seen):
            yield _figure(case, kind, [one for one in seen if one.kind == kind], claimed)


def _figure(case: Case, kind: str, seen: Sequence[Visible], claimed: dict[int, list[float]]) -> Figure:
    waits = [one.wait(claimed.get(one.id, ())) for one in seen]
    bounds = [one.bound + case.allowance for one in seen]
    worst = max(wait / bound for wait, bound in zip(waits, bounds, strict=True))
    spread = f"p50 {quantile(waits, 0.5):.2f} s, worst {max(waits):.2f} s of {len(waits):,}"
    what = f"{case}, {kind}: worst wait of its bound"
    return Figure(what, (worst,), REQUIRED, ours=spread, floor=f"bound {max(bounds):.2f} s")


def _run(url: str, seconds: float, case: Case) -> tuple[list[Visible], dict[int, list[float]]]:
    PostgresEngine(url).migrate()
    ready, stop, answers = CONTEXT.Barrier(case.claimers + 1), CONTEXT.Event(), CONTEXT.Queue()
    processes = [
        CONTEXT.Process(target=_claim, args=(url, case, ready, stop, answers), daemon=True)
        for _ in range(case.claimers)
    ]
    with running(processes):
        ready.wait(PATIENCE)
        seen = _produce(url, seconds)
        time.sleep(AFTERWARDS)
        stop.set()
        parts = [answers.get(timeout=60) for _ in processes]
    claimed: dict[int, list[float]] = {}
    for times, released in parts:
        seen += released
        for job_id, at in times:
            claimed.setdefault(job_id, []).append(at)
    return seen, claimed


def _claim(url: str, case: Case, ready: Any, stop: Any, answers: Any) -> None:
    """Keep up with the stream; hand some jobs back."""
    claimer = Claimer(PostgresEngine(url), listens=False)  # so that only the looks find them
    ready.wait(PATIENCE)
    claimer.share()
    if claimer.lane.ladders.index in BUSY[: case.busy]:
        stop.wait()
    rows: list[Claimed] = []
    times: list[tuple[int, float]] = []
    released: dict[int, Visible] = {}
    while not stop.is_set():
        back = {job.id: job for job in rows if job.id % RELEASED == 0 and job.id not in released}
        rows = claimer.turn([settled(job, Released()) if job.id in back else settled(job) for job in rows], BATCH)
        now = time.time()
        times += [(job.id, now) for job in rows]
        released |= {n: Visible(HANDED_BACK, n, now, now - job.run_at.timestamp()) for n, job in back.items()}
        if len(rows) < BATCH:
            time.sleep(PAUSE)
    answers.put((times, list(released.values())))


def _produce(url: str, seconds: float) -> list[Visible]:
    """The stream, and everything late."""
    seen: list[Visible] = []
    until = time.time() + seconds
    parts: list[Callable[[], None]] = [partial(_stream, url, until), partial(_higher, url, until, seen)]
    parts += [partial(_commit_late, url, until, late, 1, seen) for late in LATE]
    parts += [partial(_commit_late, url, time.time() + BULK_LATE, BULK_LATE, BULK, seen)]  # one of them
    threads = [threading.Thread(target=part, daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def _stream(url: str, until: float) -> None:
    engine = PostgresEngine(url)
    while time.time() < until:
        engine.run(jobs.add_many([NewJob("noop")] * STREAM))
        time.sleep(STREAM_EVERY)
    engine.close()


def _higher(url: str, until: float, seen: list[Visible]) -> None:
    """A range is forgotten a minute after its last job: each priority has but one."""
    engine = PostgresEngine(url)
    for priority in HIGHER:
        time.sleep((until - time.time()) / (len(HIGHER) + 1))
        added = engine.run(jobs.add(NewJob("noop", priority=priority)))
        seen.append(Visible("first job of a higher priority", added.id, time.time(), 0.0))
    engine.close()


def _commit_late(url: str, until: float, late: float, count: int, seen: list[Visible]) -> None:
    engine = PostgresEngine(url)
    add = jobs.add(NewJob("noop"))
    kind = f"committed {late:g} s late" + (f", {count:,} at once" if count > 1 else "")
    with engine.connection() as raw:
        while time.time() < until:
            with raw.transaction():
                began = time.time()
                ids = [carry(raw, engine.dialect, add, engine.server.where).id for _ in range(count)]
                time.sleep(late)
            now = time.time()
            seen.append(Visible(kind, ids[-1], now, now - began))
            time.sleep(PAUSE_BETWEEN)
    engine.close()
