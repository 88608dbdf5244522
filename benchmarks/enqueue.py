"""How fast are jobs added: many with their ids back, beside raw COPY or executemany; one, beside a bare INSERT?

The floors write ready lines or rows into the same table, past our code. Our side gets payloads that are encoded
already, as the floors do; what it costs to check and encode them is told beside it.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median

import psycopg

from benchmarks.floor import connect
from benchmarks.loops import NOTE, open_engine
from benchmarks.places import Bench
from benchmarks.report import Bound, Figure, rate
from dibs import Dibs
from dibs.job import NewJob
from dibs.operations import jobs
from dibs.payload import Signature

MANY, FEW = 20_000, 100
LAPS = {MANY: (15, 3), FEW: (100, 20), 1: (7, 3)}  # in which the ways alternate in a round; full and quick
SINGLES = (300, 60)  # in a lap
BUFFER = 500  # lines that go to COPY at once
COPY = "copy dibs.jobs (queue, rank, type, payload) from stdin"
POSTGRES_ONE = "insert into dibs.jobs (queue, rank, type, payload) values (%s, %s, %s, %s) returning id"
SQLITE_MANY = "insert into dibs_jobs (queue, rank, type, payload, run_at, created_at) values (?, ?, ?, ?, ?, ?)"
SQLITE_ONE = SQLITE_MANY + " returning id"
SINGLE_AT_LEAST, API_SINGLE_AT_LEAST = 0.8, 0.75
API_AT_LEAST = 0.4  # of COPY

Ways = Mapping[str, Callable[[], object]]
Laps = dict[str, list[float]]


def noop(i: int, note: str) -> None:
    """The task whose calls are added."""


SIGNATURE = Signature(noop)
CALLS = [{"i": n, "note": NOTE} for n in range(MANY)]
PAYLOADS = [json.dumps(call).encode() for call in CALLS]


def measure(bench: Bench) -> Iterator[Figure]:
    """Both engines: many, few, one."""
    with bench.database() as url:
        yield from _ask(bench, Postgres(url))
    with bench.file("enqueue") as path:
        yield from _ask(bench, Sqlite(path))


class Contest(ABC):
    """The ways to add jobs to one database."""

    floor: str
    at_least: float

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.engine.migrate()
        self.app = Dibs(url if "://" in url else f"sqlite:///{url}")
        self.task = self.app.task(name="noop")(noop)

    def add_many(self, count: int) -> None:
        """Ours, from payloads."""
        added = self.engine.run(jobs.add_many(NewJob("noop", payload) for payload in PAYLOADS[:count]))
        assert len(added) == count
        assert added == sorted(added)

    def add_calls(self, count: int) -> None:
        """Ours, from the arguments of calls."""
        self.engine.run(jobs.add_many(NewJob("noop", SIGNATURE.dump(call)) for call in CALLS[:count]))

    def add_by_api(self, count: int) -> None:
        """Ours, as a user does."""
        self.app.enqueue_many(self.task.call(**call) for call in CALLS[:count])

    def add_singly_by_api(self, count: int) -> None:
        """Ours, as a user does, one by one."""
        for call in CALLS[:count]:
            self.task.enqueue(**call)

    def add_singly(self, count: int) -> None:
        """Ours, one by one."""
        for payload in PAYLOADS[:count]:
            self.engine.run(jobs.add(NewJob("noop", payload)))

    @abstractmethod
    def raw(self, count: int) -> None:
        """The floor of many."""

    @abstractmethod
    def bare(self, count: int) -> None:
        """The floor of one, so many times."""

    @abstractmethod
    def clear(self) -> None:
        """Empty the table."""

    def close(self) -> None:
        """Close the connections."""
        self.engine.close()
        self.app.close()


class Postgres(Contest):
    """Beside COPY, and an INSERT that is prepared."""

    floor, at_least = "raw COPY of ready lines", 0.75

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.connection = psycopg.connect(url, autocommit=True)
        lines = [b"default\t4\tnoop\t%b\n" % payload for payload in PAYLOADS]
        self.buffers = [b"".join(lines[n : n + BUFFER]) for n in range(0, MANY, BUFFER)]
        self.few = b"".join(lines[:FEW])

    def raw(self, count: int) -> None:
        with self.connection.transaction(), self.connection.cursor().copy(COPY) as copy:
            for buffer in self.buffers if count == MANY else [self.few]:
                copy.write(buffer)

    def bare(self, count: int) -> None:
        for payload in PAYLOADS[:count]:
            values = ("default", 4, "noop", payload.decode())
            self.connection.execute(POSTGRES_ONE, values, prepare=True, binary=True).fetchone()

    def clear(self) -> None:
        self.connection.execute("truncate dibs.jobs")

    def close(self) -> None:
        self.connection.close()
        super().close()


class Sqlite(Contest):
    """Beside one executemany in one transaction, and an INSERT that commits by itself."""

    floor, at_least = "one executemany", 0.5

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.connection = connect(url)
        now = int(time.time() * 1e6)
        self.rows = [("default", 4, "noop", payload.decode(), now, now) for payload in PAYLOADS]

    def raw(self, count: int) -> None:
        self.connection.execute("begin immediate")
        self.connection.executemany(SQLITE_MANY, self.rows[:count])
        self.connection.execute("commit")

    def bare(self, count: int) -> None:
        for row in self.rows[:count]:
            self.connection.execute(SQLITE_ONE, row).fetchone()

    def clear(self) -> None:
        self.connection.execute("delete from dibs_jobs")
        self.connection.execute("pragma wal_checkpoint(truncate)").fetchall()

    def close(self) -> None:
        self.connection.close()
        super().close()


def _ask(bench: Bench, contest: Contest) -> Iterator[Figure]:
    name = contest.engine.name
    with ExitStack() as stack:
        stack.callback(contest.close)
        for count in (MANY, FEW):
            bench.say(f"enqueue: {name}, {count:,} at once")
            rounds = _rounds(bench, contest, count, _many(contest, count))
            what = f"{name}, {count:,} at once with ids, of {contest.floor}"
            yield _figure(what, "ours", rounds, count, Bound(contest.at_least) if count == MANY else None)
            yield _figure(f"{what}: checked and encoded too", "calls", rounds, count, None)
            limit = Bound(API_AT_LEAST) if count == MANY and name == "postgres" else None
            yield _figure(f"{what}: by enqueue_many", "api", rounds, count, limit)
        bench.say(f"enqueue: {name}, one at a time")
        singles = bench.size(*SINGLES)
        ways = {
            "floor": partial(contest.bare, singles),
            "ours": partial(contest.add_singly, singles),
            "api": partial(contest.add_singly_by_api, singles),
        }
        rounds = _rounds(bench, contest, 1, ways)
        what = f"{name}, one at a time, of a bare INSERT with its id back"
        yield _figure(what, "ours", rounds, singles, Bound(SINGLE_AT_LEAST))
        yield _figure(f"{what}: by enqueue", "api", rounds, singles, Bound(API_SINGLE_AT_LEAST))


def _many(contest: Contest, count: int) -> Ways:
    return {
        "floor": partial(contest.raw, count),
        "ours": partial(contest.add_many, count),
        "calls": partial(contest.add_calls, count),
        "api": partial(contest.add_by_api, count),
    }


def _rounds(bench: Bench, contest: Contest, count: int, ways: Ways) -> list[Laps]:
    return [_alternate(ways, bench.size(*LAPS[count]), contest.clear) for _ in range(bench.rounds)]


def _alternate(ways: Ways, laps: int, clear: Callable[[], None]) -> Laps:
    """Seconds of each way in each lap; the first lap warms up."""
    seconds: Laps = {name: [] for name in ways}
    for lap in range(laps + 1):
        for name, way in ways.items():
            clear()
            began = time.perf_counter()
            way()
            if lap:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def _figure(what: str, way: str, rounds: Sequence[Laps], count: int, bound: Bound | None) -> Figure:
    ratios = tuple(median(f / o for f, o in zip(laps["floor"], laps[way], strict=True)) for laps in rounds)
    ours, theirs = (rate(count / median(s for laps in rounds for s in laps[name])) for name in (way, "floor"))
    return Figure(what, ratios, bound, ours=ours, floor=theirs)
