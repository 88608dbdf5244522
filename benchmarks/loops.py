"""What races: the floor, and dibs, each on a database that was filled for it."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import psycopg

from benchmarks.claimer import Claimer, settled
from benchmarks.floor import PostgresFloor, SqliteFloor
from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.job import Claimed, NewJob
from dibs.lifecycle import Errored, Released, failure
from dibs.operations import jobs
from dibs.operations.claims import Settle
from dibs.payload import decode, encode

Way = Literal["separate", "turn"]

PAUSE, STARVED = 0.005, 20.0
NOTE = "x" * 60
ERROR = Errored(encode(failure(1, "ValueError: on purpose")))
FILL = """
insert into "{schema}".jobs (queue, rank, type, payload)
select 'default', 4 + i %% %s, 'noop', jsonb_build_object('i', i, 'note', repeat('x', 60)) from generate_series(1, %s) i
"""


@dataclass(frozen=True, slots=True)
class Floor:
    """The floor of a PostgreSQL database, by its URL, or of a SQLite file, by its path."""

    url: str
    batch: int
    name: str = "floor"

    def open(self) -> "FloorLoop":
        """Connect."""
        return FloorLoop(PostgresFloor(self.url) if "://" in self.url else SqliteFloor(self.url), self.batch)


@dataclass(frozen=True, slots=True)
class Dibs:
    """Dibs on a PostgreSQL schema or a SQLite file; `retried` and `released` of each hundred jobs are so at first."""

    name: str
    url: str
    batch: int
    way: Way = "turn"
    schema: str = "dibs"
    retried: int = 0
    released: int = 0
    mixed: bool = False  # batches of any size up to twice `batch`

    def open(self) -> "DibsLoop":
        """Connect and enlist."""
        return DibsLoop(self)


class FloorLoop:
    """Claim, settle, claim, settle."""

    def __init__(self, floor: PostgresFloor | SqliteFloor, batch: int) -> None:
        self.floor, self.batch = floor, batch
        self.turns = 0
        self.done: list[int] = []
        self.hunger = Hunger()

    def work(self, jobs: int) -> None:
        """So many jobs."""
        while jobs:
            rows = self.floor.claim(min(self.batch, jobs))
            self.hunger.had(rows)
            if rows:
                ids = [row[0] for row in rows]
                self.floor.settle(ids)
                self.done += ids
                self.turns += 1
                jobs -= len(rows)

    def close(self) -> None:
        """Close the connection."""
        self.floor.close()


class DibsLoop:
    """The same by way of the operations, with everything on: ladders, beats, leases, events, outcomes."""

    def __init__(self, plan: Dibs) -> None:
        self.plan = plan
        self.engine = open_engine(plan.url, plan.schema)
        self.claimer = Claimer(self.engine)
        self.turns = 0
        self.done: list[int] = []
        self.released: set[int] = set()
        self.hunger = Hunger()

    def work(self, jobs: int) -> None:
        """So many jobs."""
        if not self.turns:
            self.claimer.share()  # by now the others have enlisted too
        jobs += len(self.done)
        rows: list[Claimed] = []
        while True:
            settles = self._settles(rows)
            left = jobs - len(self.done)
            if settles and (self.plan.way == "separate" or not left):
                self.claimer.settle(settles)
                settles = []
            if not left:
                return
            rows = self._claimed(settles, min(self._batch(), left))

    def close(self) -> None:
        """Close the connections."""
        self.claimer.close()
        self.engine.close()

    def _batch(self) -> int:
        return random.randint(1, 2 * self.plan.batch) if self.plan.mixed else self.plan.batch

    def _claimed(self, settles: Sequence[Settle], limit: int) -> list[Claimed]:
        rows = self.claimer.turn(settles, limit)
        self.turns += 1
        self.hunger.had(rows)
        if self.engine.name == "postgres":  # psycopg decodes the floor's payloads too
            for job in rows:
                decode(job.payload)
        return rows

    def _settles(self, rows: Sequence[Claimed]) -> list[Settle]:
        if self.plan.retried or self.plan.released:
            return [self._settled(job) for job in rows]
        self.done += [job.id for job in rows]
        return [settled(job) for job in rows]

    def _settled(self, job: Claimed) -> Settle:
        kind = job.id * 61 % 100  # every kind on every page, as failures come
        if job.attempts == 1 and kind < self.plan.retried:
            return settled(job, ERROR)
        if kind >= 100 - self.plan.released and job.id not in self.released:
            self.released.add(job.id)
            return settled(job, Released())
        self.done.append(job.id)
        return settled(job)


class Hunger:
    """A claim that finds nothing waits a little; one that finds nothing for long is a mistake of the benchmark."""

    def __init__(self) -> None:
        self.since = 0.0

    def had(self, rows: Sequence[object]) -> None:
        """Say what a claim brought."""
        if rows:
            self.since = 0.0
            return
        self.since = self.since or time.monotonic()
        if time.monotonic() > self.since + STARVED:
            raise AssertionError(f"nothing to claim for {STARVED:g} s")
        time.sleep(PAUSE)


def open_engine(url: str, schema: str = "dibs") -> Engine:
    """An engine by URL or path."""
    return PostgresEngine(url, schema=schema) if "://" in url else SqliteEngine(url)


def fill(url: str, count: int, *, schema: str = "dibs", priorities: int = 1) -> None:
    """Migrate, and have so many jobs wait."""
    engine = open_engine(url, schema)
    engine.migrate()
    if isinstance(engine, SqliteEngine):
        engine.run(jobs.add_many(new_jobs(count)))
    engine.close()
    if "://" in url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(FILL.format(schema=schema), [priorities, count])
            connection.execute(f'vacuum analyze "{schema}".jobs')


def new_jobs(count: int) -> list[NewJob]:
    """Jobs with a payload of about 75 bytes."""
    return [NewJob("noop", encode({"i": n, "note": NOTE})) for n in range(count)]
