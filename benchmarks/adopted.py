"""How fast is an adopted table beside a queue of our own, does it slow down, and does its application feel it?"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import psycopg

from benchmarks.claimer import Claimer, finished, settled
from benchmarks.loops import Dibs, Hunger, fill, open_engine
from benchmarks.places import Bench, checkpoint, held_snapshot
from benchmarks.race import Contestant, Laps, Plan, race
from benchmarks.report import Bound, Figure, rate
from dibs.adopted.compile import compiled
from dibs.adopted.inspect import inspect, tables
from dibs.adopted.mapping import Adoption, adoption
from dibs.adopted.plan import Plan as TablePlan
from dibs.operations.adopted import taken_of
from dibs.operations.claims import Settle
from dibs.worker.lane import Ask
from dibs.worker.rows import RowLane

BATCHES = (200, 10, 5)  # the last is what an adopted table has by default
SLICES = {200: (4_000, 1_000), 10: (1_000, 200), 5: (500, 100)}
COUNT = (20, 12)
RATE, SLOPE, FELT = Bound(0.6), Bound(0.85), Bound(0.9)
ROWS = (200_000, 20_000)
TENTHS, PARTS = 10, 5
BESIDE = {"native": "beside a queue at work", "idle": "beside an idle database"}
UPDATES = (3.0, 1.0)  # seconds of the application's own updates in a slice
TABLE = """
create table stickers (
  id bigserial primary key, status text not null default 'queued', created_at timestamptz not null default now(),
  started_at timestamptz, completed_at timestamptz, worker_id text, error text, attempts int not null default 0,
  note text)
"""
FILL = """
insert into stickers (created_at, note) select now() - interval '1 hour' + i * interval '1 millisecond', repeat('x', 60)
from generate_series(1, %s) i
"""


def stickers() -> Adoption:
    """Everything that can be kept, is."""
    return adoption(
        "stickers",
        key="id",
        status="status",
        states={"PENDING": "queued", "RUNNING": "started", "SUCCESSFUL": "completed", "FAILED": "failed"},
        order_by="created_at",
        started_at="started_at",
        finished_at="completed_at",
        worker="worker_id",
        error="error",
        attempts="attempts",
        batch=200,
    )


def prepare(url: str, rows: int) -> None:
    """The table with its planned indexes, and rows that wait."""
    engine = open_engine(url, "dibs")
    engine.migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)  # type: ignore[arg-type]  # a constant
        said = stickers()
        for each in TablePlan(said, engine.run(tables(said)), engine.name).improvements():
            connection.execute(each.sql)  # type: ignore[arg-type]  # our own
        connection.execute(FILL, [rows])
        connection.execute("vacuum analyze stickers")
    engine.close()


@dataclass(frozen=True, slots=True)
class Rows:
    """The adopted table of a database."""

    name: str
    url: str
    batch: int

    def open(self) -> "RowLoop":
        """Connect and enlist."""
        return RowLoop(self)


class RowLoop:
    """A worker's turns on the table, with everything on."""

    def __init__(self, plan: Rows) -> None:
        self.plan = plan
        self.engine = open_engine(plan.url, "dibs")
        self.claimer = Claimer(self.engine, settings=True)
        lane, said = self.claimer.lane, stickers()
        source = compiled(said, self.engine.run(inspect(said)), self.engine)
        self.lane = RowLane(
            self.engine, lane.session, lane.worker, lane.doubt, alone=False, source=source, worker_name="bench"
        )
        self.claimer.lane = self.lane
        self.turns = 0
        self.done: list[int] = []
        self.hunger = Hunger()

    def work(self, jobs: int) -> None:
        """So many rows."""
        settles: list[Settle] = []
        while jobs or settles:
            ask = Ask((), min(self.plan.batch, jobs)) if jobs else None
            turn = finished(self.lane.turn(ask, settles))
            assert not turn.lost, "nobody else could have had them"
            self.turns += 1
            if ask:
                self.hunger.had(turn.claimed)
            settles = [settled(job, key=taken_of(job).key) for job in turn.claimed]
            self.done += [job.id for job in turn.claimed]
            jobs -= len(turn.claimed)

    def close(self) -> None:
        """Close the connections."""
        self.claimer.close()
        self.engine.close()


def measure(bench: Bench) -> Iterator[Figure]:
    """The rate, the slope, and what the application feels."""
    for batch in BATCHES:
        title = f"claim and settle, batch {batch}, beside a queue"
        if bench.wants(title):
            bench.say(f"adopted: {title}")
            rounds = [_beside_native(bench, batch) for _ in range(bench.rounds)]
            ratios = tuple(laps["rows"].ratio(laps["native"]) for laps in rounds)
            ours, theirs = (rate(median(laps[name].rate for laps in rounds)) for name in ("rows", "native"))
            yield Figure(title, ratios, RATE, ours=ours, floor=theirs)
    if bench.wants("slope under a held snapshot"):
        ratios = tuple(_slope(bench) for _ in range(bench.rounds))
        yield Figure("slope under a held snapshot: last tenth beside the first", ratios, SLOPE)
    if bench.wants("the application's own updates"):
        felt = [_felt(bench) for _ in range(bench.rounds)]
        ours = rate(median(each.rows for each in felt))
        for name, bound in (("native", FELT), ("idle", None)):
            ratios = tuple(each.rows / getattr(each, name) for each in felt)
            floor = rate(median(getattr(each, name) for each in felt))
            yield Figure(f"the application's own updates of other rows, {BESIDE[name]}", ratios, bound, "", ours, floor)


def _beside_native(bench: Bench, batch: int) -> dict[str, Laps]:
    plan = Plan(1, bench.size(*COUNT), bench.size(*SLICES[batch]))
    with bench.database() as rows, bench.database() as native:
        prepare(rows, plan.needed)
        fill(native, plan.needed)
        checkpoint(rows)
        return race([Rows("rows", rows, batch), Dibs("native", native, batch)], plan)


def _slope(bench: Bench) -> float:
    bench.say("adopted: slope")
    slices = TENTHS * PARTS
    plan = Plan(1, slices, bench.size(*ROWS) // slices)
    with bench.database() as held, bench.database() as free:
        for url in (held, free):
            prepare(url, plan.needed)  # before the snapshot: an index is not made beside it
        checkpoint(held)
        contestants: Sequence[Contestant] = [Rows("held", held, 200), Rows("free", free, 200)]
        with held_snapshot(held):
            laps = race(contestants, plan)
    tenths = [_tenth(laps, n) for n in range(TENTHS)]
    bench.say("adopted: held / free by tenths: " + " ".join(f"{each:.2f}" for each in tenths))
    return tenths[-1] / tenths[0]


def _tenth(laps: dict[str, Laps], number: int) -> float:
    part = slice(number * PARTS, (number + 1) * PARTS)
    return sum(laps["free"].seconds[part]) / sum(laps["held"].seconds[part])


@dataclass(frozen=True, slots=True)
class Felt:
    """Updates a second: while rows are worked on, while as many native jobs are, and while nobody works."""

    rows: float
    native: float
    idle: float


def _felt(bench: Bench) -> Felt:
    """In turns, so that what else happens on the machine happens to all three."""
    bench.say("adopted: the application's own updates")
    seconds, rounds = UPDATES[bench.quick], 6
    with bench.database() as rows, bench.database() as native:
        prepare(rows, 200_000)
        prepare(native, 1_000)
        fill(native, 200_000)
        for url in (rows, native):
            with psycopg.connect(url) as connection:
                connection.execute("create table others (id int primary key, note text)")
                connection.execute("insert into others select i, 'x' from generate_series(1, 10000) i")
                connection.execute(
                    "insert into stickers (status, note) select 'completed', 'y' from generate_series(1, 10000)"
                )
        found = []
        for _ in range(rounds):
            with _at_work(Rows("rows", rows, 10)):
                beside_rows = _updates(rows, seconds)
            with _at_work(Dibs("native", native, 10)):
                beside_native = _updates(native, seconds)
            found.append(Felt(beside_rows, beside_native, _updates(rows, seconds)))
    return Felt(*(median(getattr(each, name) for each in found) for name in ("rows", "native", "idle")))


@contextmanager
def _at_work(contestant: Contestant) -> Iterator[None]:
    """At a steady pace, well under what it could do: 500 a second."""
    loop, over = contestant.open(), threading.Event()

    def work() -> None:
        began, done = time.monotonic(), 0
        while not over.is_set():
            loop.work(10)
            done += 10
            over.wait(max(0.0, began + done / 500 - time.monotonic()))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        loop.close()


def _updates(url: str, seconds: float) -> float:
    """Of single rows of the same table that are done, as its application makes them."""
    with psycopg.connect(url, autocommit=True) as connection:
        ids = [
            row[0] for row in connection.execute("select id from stickers where status = 'completed' and note = 'y'")
        ]
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            connection.execute("update stickers set error = 'seen' where id = %s", [ids[done % len(ids)]])
            done += 1
        return done / (time.monotonic() - began)
