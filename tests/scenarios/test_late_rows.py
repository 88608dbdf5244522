"""Rows that become visible behind the cursor are claimed within the bound, although no wake-up tells of them.

L seconds late, a row waits at most max(tick, 2 L) plus one tick, while there is capacity. Here a stream of jobs keeps
the cursor at the present, and nobody listens. Everything is judged by the database's clock.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import pytest

from dibs.engines.engine import Engine
from dibs.engines.postgres.connection import carry
from dibs.engines.postgres.engine import PostgresEngine
from dibs.job import JobId, NewJob
from dibs.ladder import TICK
from dibs.lifecycle import Back, Way
from dibs.operations import claims, jobs
from dibs.operations.claims import Settle, Want
from dibs.operations.operation import Operation
from tests.actors import Actors, Worker
from tests.scenarios.claimer import at_work, success
from tests.scenarios.places import Place, Places, long

LANES = 2  # claimers, who share the looks
BATCH = 10
STREAM, STREAM_EVERY = 5, 0.02  # jobs at a time, and seconds between: the claimers keep up with them
CROWD = 100  # rows of one late commit: many batches, so the cursor has to stay back until all are read
# For the machine, beyond the bound: round trips between the clocks that are compared, and reading a crowd. The time
# that a claimer did not get to run at all is measured, and granted twice.
ALLOWANCE = 0.35


@dataclass(frozen=True)
class Arrival:
    """A job that became visible: how late, and when by the database's clock."""

    kind: str
    job: JobId
    late: float
    visible: float

    @property
    def bound(self) -> float:
        """How long it may wait."""
        return max(TICK, 2 * self.late) + TICK


@dataclass
class Scene:
    """What has arrived, what has been claimed, and when to produce no more."""

    until: float
    producers: list[threading.Thread] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    claimed: dict[JobId, float] = field(default_factory=dict)
    gap: float = 0.0  # the longest time between two turns of a claimer
    failed: list[BaseException] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether to produce no more."""
        return time.monotonic() > self.until

    def arrived(self, kind: str, ids: Sequence[JobId], since: float, now: float) -> None:
        """These rows become visible just now, and were written at `since`."""
        self.arrivals += [Arrival(kind, job_id, now - since, now) for job_id in ids]

    @property
    def waiting(self) -> bool:
        """Whether something that arrived is not claimed yet."""
        return any(each.job not in self.claimed for each in self.arrivals)

    @property
    def patience(self) -> float:
        """How long anything may wait."""
        return max(each.bound for each in self.arrivals) + ALLOWANCE + 2 * self.gap

    def waits(self) -> list[tuple[Arrival, float]]:
        """How long each waited; for ever, if it was not claimed."""
        return [(each, self.claimed.get(each.job, float("inf")) - each.visible) for each in self.arrivals]

    def overdue(self) -> list[tuple[Arrival, float]]:
        """Those that waited longer than they may."""
        return [(each, wait) for each, wait in self.waits() if wait > each.bound + ALLOWANCE + 2 * self.gap]


class Producer:
    """Somebody with a connection of their own, who does the same thing again and again."""

    def __init__(self, scene: Scene, engine: Engine) -> None:
        assert isinstance(engine, PostgresEngine)
        self.scene, self.engine, self.raw = scene, engine, engine.connect()
        # It holds jobs only to release them, and does no looks: so it must not count as one of those who share them.
        self.worker: Worker = Actors(engine).worker(lease=0.001, beat=0.001)

    def clock(self) -> float:
        """The database's."""
        return float(self.raw.execute("select extract(epoch from clock_timestamp())::float8").fetchall()[0][0])

    def carry(self, operation: Operation[Any]) -> Any:
        """Carry an operation on this connection, in the transaction that may be open."""
        return carry(self.raw, self.engine.dialect, operation, self.engine.server.where)

    def on_time(self) -> None:
        """The stream."""
        self.carry(jobs.add_many([NewJob("task")] * STREAM))
        time.sleep(STREAM_EVERY)

    def late_commit(self, late: float, rows: int = 1) -> None:
        """Rows whose transaction commits late."""
        with self.raw.transaction():
            since = now = self.clock()
            ids = self.carry(jobs.add_many([NewJob("task")] * rows))
            while now < since + late:
                time.sleep(min(0.05, since + late - now))
                now = self.clock()
            self.scene.arrived(f"late commit of {rows}", ids, since, now)
        time.sleep(random.uniform(0.0, 0.2))

    def release(self, late: float) -> None:
        """A job held for a while and given back: it keeps its place, which is behind the cursor by now."""
        with self.raw.transaction():  # so that nobody else can claim it
            added = self.carry(jobs.add(NewJob("task")))
            want = Want(self.worker.id, 1, 1, [("default", NewJob("task").rank, added.run_at, added.id - 1)])
            (job,) = self.carry(claims.turn(want)).claimed
            assert job.id == added.id
        time.sleep(late)
        self.scene.arrived("release", [job.id], added.run_at.timestamp(), self.clock())
        self.carry(claims.settle([Settle(job.lease, Back(Way.RELEASE))]))
        time.sleep(random.uniform(0.0, 0.2))

    def top_priority(self) -> None:
        """A job more urgent than all others, in a range that is mostly empty."""
        now = self.clock()
        self.scene.arrived("top priority", [self.carry(jobs.add(NewJob("task", priority=9))).id], now, now)
        time.sleep(random.uniform(0.1, 0.6))


Act: TypeAlias = Callable[[Producer], None]


def produce(scene: Scene, place: Place, act: Act) -> None:
    """One producer, from its first connection to the end of the scene."""
    engine = place.open()
    try:
        producer = Producer(scene, engine)
        with producer.raw:
            while not scene.over:
                act(producer)
    except BaseException as error:
        scene.failed.append(error)
    finally:
        engine.close()


@contextmanager
def producing(scene: Scene, place: Place, acts: Sequence[Act]) -> Iterator[None]:
    """Producers at work beside the block."""
    threads = scene.producers = [threading.Thread(target=produce, args=(scene, place, act)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        scene.until = min(scene.until, time.monotonic())
        for thread in threads:
            thread.join()


async def claim_all(scene: Scene, place: Place) -> None:
    """Claim without a pause until nothing more arrives and everything is claimed, or overdue in any case."""
    before, ended = 0.0, 0.0
    async with at_work(place.open()) as claimer:
        settles: list[Settle] = []
        while not ended or (scene.waiting and time.monotonic() < ended + scene.patience):
            ended = ended or (0.0 if any(each.is_alive() for each in scene.producers) else time.monotonic())
            turn = await claimer.turn(BATCH, settles)
            clock = turn.clock.timestamp()
            scene.gap, before = max(scene.gap, clock - before if before else 0.0), clock
            scene.claimed.update((job.id, clock) for job in turn.claimed)
            settles = [success(job.lease) for job in turn.claimed]
            await asyncio.sleep(0.005)


async def watch(place: Place, lateness: Sequence[float], seconds: float) -> None:
    scene = Scene(time.monotonic() + seconds)
    worst = max(lateness)
    acts: list[Act] = [Producer.on_time, Producer.top_priority, partial(Producer.late_commit, late=worst, rows=CROWD)]
    acts += [partial(Producer.late_commit, late=late) for late in lateness]
    acts += [partial(Producer.release, late=late) for late in lateness if late]
    with producing(scene, place, acts):
        await asyncio.gather(*[claim_all(scene, place) for _ in range(LANES)])
    assert not scene.failed
    kinds = {each.kind for each in scene.arrivals}
    assert kinds == {"late commit of 1", f"late commit of {CROWD}", "release", "top priority"}
    assert not scene.overdue(), f"with a longest gap of {scene.gap:.2f} s"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres18", *long("postgres16", "postgres-system")])
async def test_late_rows_are_claimed_within_the_bound(kind: str, places: Places) -> None:
    place, _ = places.fresh(kind)
    await watch(place, lateness=[0.0, 0.3, 0.7, 1.0], seconds=7)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgres18"])
async def test_rows_up_to_three_seconds_late_are_claimed_within_the_bound(kind: str, places: Places) -> None:
    place, _ = places.fresh(kind)
    await watch(place, lateness=[0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], seconds=40)
