"""How fast is a whole worker with its defaults? How soon does it wake, and what does it cost when idle? When it is
killed, how soon does another take over?"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import psycopg

from benchmarks import floor
from benchmarks.loops import Floor, fill, open_engine
from benchmarks.places import Bench, checkpoint
from benchmarks.report import Bound, Figure, rate
from dibs.engines.engine import Engine
from dibs.job import NewJob
from dibs.operations import jobs, queues, workers
from dibs.payload import encode

Member: TypeAlias = subprocess.Popen[bytes]

BATCH = 100  # of the floor
JOBS, QUICK_JOBS = 100_000, 20_000
FEWER = 5  # times, of what is slower by design
WAKES, QUICK_WAKES = 300, 60
ELSEWHERE = 50_000
IDLE_SECONDS, QUICK_IDLE = 30.0, 8.0
IDLE_WORKERS = 10
NAP, NAPS, QUICK_NAPS = 0.05, 100, 40
HEALING = {"a worker's child": 2.0, "its supervisor alone": 2.0, "the whole group": 20.0}  # seconds until it runs again
PATIENCE = 300.0

MODULE = """
import asyncio, os, time
from dibs import Dibs, current_job
app = Dibs({url!r}{settings})

@app.task(name="noop"{options})
{kind} noop(i: int, note: str) -> None: ...

@app.task(name="nap")
async def nap() -> None:
    await asyncio.sleep({nap})

@app.task(name="hold")
async def hold(path: str) -> None:
    with open(path, "a") as lines:
        lines.write(f"{{current_job().attempt}} {{time.time()}}\\n")
    await asyncio.sleep(600)

@app.task(name="wake")
async def wake() -> float:
    return time.time()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run no-op jobs."""

    engine: str
    title: str
    kind: str
    processes: int
    required: float
    fewer: int = 1
    options: str = ""


CASES = (
    Case("postgres", "async tasks, one process", "async def", 1, 1.0),
    Case("postgres", "async tasks, two processes", "async def", 2, 1.5),
    Case("postgres", "sync tasks in threads", "def", 1, 0.3, FEWER),
    Case("postgres", "sync tasks in processes", "def", 1, 0.15, FEWER, ", process=True"),
    Case("sqlite", "async tasks, one process", "async def", 1, 0.3),
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Throughput, waking, idling, healing."""
    for case in CASES:
        if bench.wants(f"{case.engine}, {case.title}"):
            bench.say(f"workers: {case.engine}, {case.title}")
            yield _throughput(bench, case)
    for engine in ("postgres", "sqlite"):
        if bench.wants(f"{engine}, waking"):
            bench.say(f"workers: {engine}, waking an idle worker")
            yield from _waking(bench, engine)
    for engine in ("postgres", "sqlite"):
        if bench.wants(f"{engine}, idle"):
            bench.say(f"workers: {engine}, {IDLE_WORKERS} idle workers")
            yield from _idle(bench, engine)
    for engine in ("postgres", "sqlite"):
        if bench.wants(f"{engine}, replicas"):
            bench.say(f"workers: {engine}, one replica and two")
            yield _replicas(bench, engine)
        for whom, limit in HEALING.items():
            if bench.wants(f"{engine}, SIGKILL of {whom}"):
                bench.say(f"workers: {engine}, SIGKILL of {whom}")
                yield _healing(bench, engine, whom, limit)


@contextmanager
def place_of(bench: Bench, engine: str) -> Iterator[str]:
    """A database for a floor and for dibs: a URL, or the path of a file."""
    with ExitStack() as stack:
        yield stack.enter_context(bench.database() if engine == "postgres" else bench.file("workers"))


@contextmanager
def at_work(
    place: str, kind: str = "async def", *options: str, count: int = 1, task: str = "", settings: str = ""
) -> Iterator[list[Member]]:
    """`dibs worker` with its defaults, log and all, so many times."""
    with TemporaryDirectory() as folder:
        url = place if "://" in place else f"sqlite:///{place}"
        text = MODULE.format(url=url, settings=settings, kind=kind, options=task, nap=NAP)
        Path(folder, "bench_app.py").write_text(text)
        with Path(folder, "log").open("wb") as log:
            members = [
                subprocess.Popen(
                    [sys.executable, "-m", "dibs", "worker", "bench_app:app", *options],
                    cwd=folder,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
                for _ in range(count)
            ]
            try:
                yield members
            finally:
                for number in (signal.SIGTERM, signal.SIGTERM):  # the second one stops what runs
                    for member in members:
                        member.send_signal(number)
                    time.sleep(0.2)
                for member in members:
                    member.wait(PATIENCE)


def _throughput(bench: Bench, case: Case) -> Figure:
    count = bench.size(JOBS, QUICK_JOBS) // case.fewer
    ratios, ours, theirs = [], [], []
    for _ in range(bench.rounds):
        with place_of(bench, case.engine) as place, bench.file("floor") as base:
            fill(place, count)
            if case.engine == "postgres":
                floor.fill_postgres(place, count)
                checkpoint(place)
                base = place
            else:
                floor.fill_sqlite(base, count)
            loop = Floor(base, BATCH).open()
            half = count // 2 // BATCH * BATCH
            before = _timed_floor(loop, half)
            processes = ("--processes", str(case.processes))
            with paused(place) as engine, at_work(place, case.kind, *processes, task=case.options):
                begin(engine, case.processes)
                done = worked(engine, count)
            after = _timed_floor(loop, half)
            loop.close()
        theirs.append((before + after) / 2)
        ours.append(done)
        ratios.append(done / theirs[-1])
    return Figure(
        f"{case.engine}, {case.title}, default settings",
        tuple(ratios),
        Bound(case.required),
        ours=rate(median(ours)),
        floor=rate(median(theirs)),
    )


def _timed_floor(loop: Any, count: int) -> float:
    began = time.perf_counter()
    loop.work(count)
    return count / (time.perf_counter() - began)


@contextmanager
def paused(place: str) -> Iterator[Engine]:
    """The queue waits until every process is there: how long they take to start is not what is asked."""
    engine = open_engine(place)
    try:
        engine.run(queues.pause("default"))
        yield engine
    finally:
        engine.close()


def begin(engine: Engine, processes: int = 1) -> None:
    """Now all of them are there."""
    _until_there(engine, processes)
    engine.run(queues.resume("default"))


def worked(engine: Engine, count: int) -> float:
    """Jobs in a second, from the first claim to the last settle, by the database's clock.

    To look costs the server time that it has not: so it is done seldom.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        time.sleep(1)
        done, first, last = _history(engine)
        if done >= count:
            return float(count / (last - first))
        assert time.monotonic() < deadline, f"only {done:,} of {count:,} jobs were run"


def _history(engine: Any) -> tuple[int, float, float]:
    text = {
        "postgres": "select count(*), extract(epoch from min(claimed_at))::float8, "
        "extract(epoch from max(finished_at))::float8 from dibs.history",
        "sqlite": "select count(*), min(claimed_at) / 1e6, max(finished_at) / 1e6 from dibs_history",
    }[engine.name]
    if engine.name == "postgres":
        with engine.connection() as raw:
            row = raw.execute(text).fetchone()
    else:
        row = engine.connection("read").raw.execute(text).fetchone()
    return int(row[0]), float(row[1] or 0), float(row[2] or 0)


def _waking(bench: Bench, kind: str) -> Iterator[Figure]:
    """From when an enqueue returned to the first line of the task, in another process."""
    limits = {"postgres": (3.0, 10.0), "sqlite": (5.0, 20.0)}[kind]
    bare = f"bare NOTIFY {_bare(bench):.2f} ms" if kind == "postgres" else ""
    for waiting in (0, ELSEWHERE):
        what = f"{kind}, waking an idle worker" + (f", {waiting:,} jobs in another queue" if waiting else "")
        rounds = [quantiles(_waits(bench, kind, waiting), n=100) for _ in range(bench.rounds)]
        for cut, limit in zip((50, 99), limits, strict=True):
            figures = tuple(cuts[cut - 1] for cuts in rounds)
            yield Figure(f"{what}: p{cut}", figures, Bound(limit, at_most=True), " ms", floor=bare)


def _waits(bench: Bench, kind: str, elsewhere: int) -> list[float]:
    """Milliseconds of each. The worker does not serve the queue in which the others wait, or it would not be idle."""
    with place_of(bench, kind) as place:
        fill(place, 10)
        engine = open_engine(place)
        engine.run(jobs.add_many([NewJob("elsewhere", queue="elsewhere")] * elsewhere))
        with at_work(place, "async def", "--queues", "default"):
            _until(lambda: bool(engine.run(workers.list_workers())))
            waits = [_wake(engine) for _ in range(bench.size(WAKES, QUICK_WAKES))]
        engine.close()
    return waits


def _wake(engine: Any) -> float:
    time.sleep(0.02)  # it is idle again
    added = engine.run(jobs.add(NewJob("wake", encode({}))))
    committed = time.time()
    while not (job := engine.run(jobs.get(added.id))).state.final:
        time.sleep(0.002)
    return 1000 * (float(job.result) - committed)


def _bare(bench: Bench) -> float:
    """Milliseconds from NOTIFY to a listener, the median of many."""
    with (
        bench.database() as url,
        psycopg.connect(url, autocommit=True) as listens,
        psycopg.connect(url, autocommit=True) as tells,
    ):
        listens.execute("listen bare")
        waits = []
        for _ in range(200):
            began = time.perf_counter()
            tells.execute("notify bare")
            next(listens.notifies(timeout=5, stop_after=1))
            waits.append(1000 * (time.perf_counter() - began))
    return median(waits)


def _idle(bench: Bench, kind: str) -> Iterator[Figure]:
    share = {"postgres": 3.0, "sqlite": 8.0}[kind]
    with place_of(bench, kind) as place:
        fill(place, 0)
        spent, said = idle_cost(bench, place)
    yield Figure(f"{kind}, {IDLE_WORKERS} idle workers: of one core", (100 * spent,), Bound(share, at_most=True), " %")
    if kind == "postgres":
        yield Figure(f"{kind}, {IDLE_WORKERS} idle workers: statements a second", (said,), Bound(8, at_most=True))


def idle_cost(bench: Bench, place: str) -> tuple[float, float]:
    """Of ten workers with nothing to do: cores, and statements a second."""
    seconds = bench.size(IDLE_SECONDS, QUICK_IDLE)
    engine = open_engine(place)
    with at_work(place, count=IDLE_WORKERS) as members:
        _until_there(engine, IDLE_WORKERS)
        time.sleep(12)  # by then looks are as rare as they get
        spent, said = _cpu(members), _statements(place)
        time.sleep(seconds)
        spent, said = _cpu(members) - spent, _statements(place) - said
    engine.close()
    return spent / seconds, said / seconds


def _replicas(bench: Bench, kind: str) -> Figure:
    """Jobs that wait, one at a time in each replica: two of them take half as long."""
    count, ratios = bench.size(NAPS, QUICK_NAPS), []
    for _ in range(bench.rounds):
        one, two = (_napped(bench, kind, replicas, count) for replicas in (1, 2))
        ratios.append(two / one)
    return Figure(f"{kind}, replicas of concurrency 1: time of two, of one", tuple(ratios), Bound(0.6, at_most=True))


def _napped(bench: Bench, kind: str, replicas: int, count: int) -> float:
    """Seconds that so many replicas take for so many naps."""
    with place_of(bench, kind) as place:
        fill(place, 0)
        engine = open_engine(place)
        with at_work(place, "async def", "--concurrency", "1", count=replicas):
            _until_there(engine, replicas)
            engine.run(jobs.add_many([NewJob("nap", encode({}))] * count))
            seconds = count / worked(engine, count)
        engine.close()
    return seconds


def _healing(bench: Bench, kind: str, whom: str, limit: float) -> Figure:
    waits = tuple(_healed(bench, kind, whom) for _ in range(bench.rounds))
    return Figure(f"{kind}, SIGKILL of {whom}: its job runs again after", waits, Bound(limit, at_most=True), " s")


def _healed(bench: Bench, kind: str, whom: str) -> float:
    """Seconds from the kill to the first line of the second attempt, with a second worker on hand."""
    with place_of(bench, kind) as place, TemporaryDirectory() as folder, at_work(place, count=2) as members:
        lines = Path(folder, "lines")
        engine = open_engine(place)
        engine.migrate()
        _until_there(engine, 2)
        added = engine.run(jobs.add(NewJob("hold", encode({"path": str(lines)}))))
        _until(lambda: lines.exists() and lines.read_text().count("\n") == 1)
        victim = _runs(members, str(engine.run(jobs.get(added.id)).worker))
        killed = time.time()
        for pid in {"a worker's child": victim[1:], "its supervisor alone": victim[:1]}.get(whom, victim):
            os.kill(pid, signal.SIGKILL)
        _until(lambda: lines.read_text().count("\n") == 2)
        engine.run(jobs.cancel([added.id]))
        engine.close()
        return float(lines.read_text().split()[3]) - killed


def _runs(members: list[Member], worker: str) -> list[int]:
    """The supervisor and its children that this worker is one of."""
    for member in members:
        children = [int(pid) for pid in Path(f"/proc/{member.pid}/task/{member.pid}/children").read_text().split()]
        if any(f"-{pid}-" in worker for pid in children):
            return [member.pid, *children]
    raise AssertionError(f"nobody here is {worker}")


def _cpu(members: list[Member]) -> float:
    """Seconds of CPU that they and their children have used."""
    total = 0.0
    for member in members:
        listed = Path(f"/proc/{member.pid}/task/{member.pid}/children").read_text().split()
        for pid in (str(member.pid), *listed):
            fields = re.sub(r"^.*\) ", "", Path(f"/proc/{pid}/stat").read_text()).split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _statements(place: str) -> int:
    """Transactions that the server has carried, which for an idle worker are statements; ours is one of them."""
    if "://" not in place:
        return 0
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("select pg_stat_clear_snapshot()")
        text = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
        row = connection.execute(text).fetchone()
        return int(row[0]) if row else 0


def _until_there(engine: Engine, processes: int) -> None:
    """Each has as many rows as it has lanes."""
    _until(lambda: len(engine.run(workers.list_workers())) >= processes * engine.can.lanes)


def _until(happened: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
