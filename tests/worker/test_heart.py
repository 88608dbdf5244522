"""The heart of a worker: what a beat says and learns, and when others may think the worker dead."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dibs.engines.engine import Engine
from dibs.errors import ConnectionLost, Unreachable
from dibs.job import JobId, JobState, Lease, WorkerId
from dibs.operations.operation import Operation, Statement
from dibs.operations.workers import NOTHING, Beat, Recovered
from dibs.worker import heart as heart_module
from dibs.worker.heart import Heart, Pulse, suspend_clock
from tests.actors import Actors, Worker

LEASE, BEAT = 15.0, 3.0
ME = WorkerId(7)
HELD = [Lease(JobId(1), 11), Lease(JobId(2), 22)]
ALIVE = Beat(alive={ME: 0}, claimers=1, lost=frozenset(), silent=1)
FOUND = Recovered({JobId(5): WorkerId(9)}, frozenset({WorkerId(9)}))


class Clock:
    """Goes on when told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Database:
    """Notes the statements, answers as told, and takes a second for each."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.said: list[Statement] = []
        self.within: list[float | None] = []
        self.fails: dict[str, Exception] = {}
        self.answers: dict[str, Any] = {"beat": ALIVE, "hand_back": 1, "recover": FOUND}
        self.meanwhile: Callable[[], Any] = lambda: None

    def run_once(self, operation: Operation[Any], *, within: float | None = None) -> Any:
        self.said.append(next(iter(operation)))
        self.within.append(within)
        self.clock.now += 1.0
        self.meanwhile()
        if operation.name in self.fails:
            raise self.fails[operation.name]
        return self.answers[operation.name]

    def names(self) -> list[str]:
        return [statement.name for statement in self.said]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(clock: Clock) -> Database:
    return Database(clock)


def new_heart(database: Any, clock: Callable[[], float], **more: Any) -> Heart:
    options = {"lease": LEASE, "beat": BEAT, "held": lambda: HELD, "tell": lambda pulse: None, **more}
    return Heart(database, [ME], clock=clock, **options)


def test_a_beat_names_the_leases_held(database: Database, clock: Clock) -> None:
    assert new_heart(database, clock).run_once() == Pulse(ALIVE, NOTHING)
    (said,) = database.said
    assert (said.name, said.values["workers"], said.values["held"].rows) == ("beat", [ME], [(1, 11), (2, 22)])


def test_a_beat_counts_from_when_it_was_sent(database: Database, clock: Clock) -> None:
    """The database may have noted it at any time since."""
    heart = new_heart(database, clock)
    clock.now += 3
    sent = clock.now
    heart.run_once()
    assert heart.beaten_at == sent < clock.now


def test_nobody_waits_long_for_a_beat(database: Database, clock: Clock) -> None:
    new_heart(database, clock).run_once()
    assert database.within == [LEASE / 3]


def test_what_rides_in_a_beat_does_not_make_the_next_one_late(database: Database, clock: Clock) -> None:
    """Each step takes a second of the half of the lease that they have together."""
    heart = new_heart(database, clock, judge=True)
    heart.doubt(ME, 3)
    database.answers |= {"beat": replace(ALIVE, lost=frozenset(HELD)), "ended": frozenset()}
    assert heart.run_once().recovered == FOUND
    assert database.names() == ["beat", "ended", "hand_back", "recover"]
    assert database.within == [LEASE / 3, LEASE / 2 - 1, LEASE / 2 - 2, LEASE / 2 - 3]


def test_what_takes_too_long_is_put_off(database: Database, clock: Clock) -> None:
    heart = new_heart(database, clock)
    heart.doubt(ME, 3)
    database.meanwhile = lambda: setattr(clock, "now", clock.now + LEASE / 2)
    pulse = heart.run_once()
    assert database.names() == ["beat"]
    assert "'hand_back' is put off" in str(pulse.error)
    assert heart.in_doubt


def test_a_beat_that_fails_is_told(database: Database, clock: Clock) -> None:
    heart = new_heart(database, clock)
    began, error = heart.beaten_at, Unreachable("no route")
    database.fails["beat"] = error
    assert heart.run_once() == Pulse(None, error=error)
    assert (heart.failed, heart.beaten_at) == (True, began)
    database.fails.clear()
    heart.run_once()
    assert (heart.failed, heart.beaten_at > began) == (False, True)


@pytest.mark.parametrize(
    "silence, expired", [(0, False), (LEASE * 0.8, False), (LEASE * 0.8 + 0.01, True), (LEASE, True)]
)
def test_a_worker_is_over_before_others_may_think_so(clock: Clock, silence: float, expired: bool) -> None:
    heart = new_heart(Database(clock), clock)
    clock.now += silence
    assert heart.expired is expired


def test_a_worker_that_was_long_in_coming_beats_before_it_works(database: Database, clock: Clock) -> None:
    """Its first row was there at once, and the last one late."""
    heart = new_heart(database, clock, since=clock.now - LEASE)
    assert heart.expired
    heart.run_once()
    assert not heart.expired


def test_a_worker_that_beats_again_is_not_over(database: Database, clock: Clock) -> None:
    heart = new_heart(database, clock)
    clock.now += LEASE
    assert heart.expired
    heart.run_once()
    assert not heart.expired


@pytest.mark.parametrize("gap, steady", [(BEAT, True), (2 * BEAT, True), (2 * BEAT + 0.01, False), (3600.0, False)])
def test_a_gap_of_over_two_beats_is_owned_up_to(database: Database, clock: Clock, gap: float, steady: bool) -> None:
    heart = new_heart(database, clock)
    clock.now += gap
    heart.run_once()
    assert database.said[0].values["steady"] is steady


@pytest.mark.parametrize(
    "judge, gap, said",
    [(False, BEAT, ["beat"]), (True, BEAT, ["beat", "recover"]), (True, 3 * BEAT, ["beat"])],
)
def test_only_a_steady_judge_recovers(
    database: Database, clock: Clock, judge: bool, gap: float, said: list[str]
) -> None:
    heart = new_heart(database, clock, judge=judge)
    clock.now += gap
    pulse = heart.run_once()
    assert database.names() == said
    assert pulse.recovered == (FOUND if "recover" in said else NOTHING)


def test_where_all_are_heard_there_is_nothing_to_judge(database: Database, clock: Clock) -> None:
    database.answers["beat"] = replace(ALIVE, silent=0)
    new_heart(database, clock, judge=True).run_once()
    assert database.names() == ["beat"]


# Claims in doubt


def test_a_claim_in_doubt_is_handed_back_by_the_next_beat(database: Database, clock: Clock) -> None:
    heart = new_heart(database, clock)
    heart.doubt(ME, 3)
    assert heart.in_doubt
    heart.run_once()
    assert database.names() == ["beat", "hand_back"]
    back = database.said[1].values
    assert (back["workers"], back["claims"], back["held"]) == ([ME], [7 << 20 | 3], [11, 22])
    assert not heart.in_doubt


def test_and_again_until_a_lease_later(database: Database, clock: Clock) -> None:
    """The server may get to a claim long after its client gave up."""
    heart = new_heart(database, clock)
    heart.doubt(ME, 3)
    until = clock.now + LEASE
    while clock.now < until:
        heart.run_once()
        assert database.names()[-1] == "hand_back"
    heart.run_once()
    heart.run_once()
    assert database.names()[-2:] == ["beat", "beat"]


def test_a_hand_back_that_fails_is_tried_with_the_next_beat(database: Database, clock: Clock) -> None:
    heart = new_heart(database, clock)
    heart.doubt(ME, 3)
    clock.now += LEASE
    database.fails["hand_back"] = ConnectionLost("cut off")
    assert heart.run_once().error is not None
    assert (heart.failed, heart.in_doubt) == (True, True)
    database.fails.clear()
    heart.run_once()
    assert database.names() == ["beat", "hand_back"] * 2
    assert (heart.failed, heart.in_doubt) == (False, False)


def test_a_doubt_that_comes_meanwhile_is_for_the_next_beat(database: Database, clock: Clock) -> None:
    heart = new_heart(database, clock)
    heart.doubt(ME, 3)
    database.meanwhile = lambda: heart.doubt(ME, 4) if database.names()[-1] == "hand_back" else None
    heart.run_once()
    assert database.said[1].values["claims"] == [7 << 20 | 3]
    assert heart.in_doubt
    heart.run_once()
    assert database.said[3].values["claims"] == [7 << 20 | 3, 7 << 20 | 4]


# Its own thread


def test_it_beats_until_it_is_stopped(database: Database) -> None:
    told = threading.Semaphore(0)
    heart = new_heart(database, suspend_clock, beat=0.001, tell=lambda pulse: told.release())
    heart.start()
    for _ in range(3):
        assert told.acquire(timeout=10)
    heart.stop()
    count = len(database.said)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dibs-heart")]
    heart.stop()
    assert len(database.said) == count >= 3


def test_it_goes_on_after_a_mistake(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    told, pulses, mistake = threading.Semaphore(0), list[Pulse](), ValueError("a mistake of ours")
    failed = list[bool]()

    def tell(pulse: Pulse) -> None:
        pulses.append(pulse)
        failed.append(heart.failed)
        database.fails.clear()
        told.release()

    heart = new_heart(database, suspend_clock, beat=0.001, tell=tell)
    database.fails["beat"] = mistake
    heart.start()
    for _ in range(2):
        assert told.acquire(timeout=10)
    heart.stop()
    assert [pulses[0], failed[0]] == [Pulse(None, error=mistake), True]
    assert [pulses[1], failed[1]] == [Pulse(ALIVE), False]
    assert "a mistake of ours" in caplog.text


# Whoever is not heard of in time


@pytest.mark.parametrize("hangs", ["beat", "ended", "hand_back", "recover"])
def test_the_worker_is_told_in_time_whatever_hangs(hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may wait for an answer, or for a connection, for longer than it should."""
    monkeypatch.setattr(heart_module, "LOOK", 0.0001)
    clock, over, go_on = Clock(), threading.Event(), threading.Event()
    database = Database(clock)
    database.answers |= {"beat": replace(ALIVE, lost=frozenset(HELD)), "ended": frozenset()}

    def meanwhile() -> None:
        if database.names()[-1] == hangs:
            clock.now += LEASE
            assert go_on.wait(timeout=10)

    database.meanwhile = meanwhile
    heart = new_heart(database, clock, lease=LEASE, beat=0.001, judge=True, over=over.set)
    heart.doubt(ME, 3)
    heart.start()
    try:
        assert over.wait(timeout=10)
        assert database.names()[-1] == hangs
    finally:
        go_on.set()
        heart.stop()


def test_the_worker_is_told_once_for_each_silence() -> None:
    over, clock = threading.Semaphore(0), Clock()
    heart = new_heart(None, clock, lease=0.01, over=over.release)
    looked = threading.Semaphore(0)

    def look() -> float:
        looked.release()
        return clock.now

    def let_it_look() -> None:
        while looked.acquire(blocking=False):  # those of before
            pass
        for _ in range(5):
            assert looked.acquire(timeout=10)

    heart.clock = look
    watch = threading.Thread(target=heart.watch)
    watch.start()
    try:
        for _ in range(2):
            clock.now += 1
            assert over.acquire(timeout=10)
            let_it_look()
            heart.beaten_at = clock.now
            let_it_look()
    finally:
        heart.stop()
        watch.join()
    assert not over.acquire(blocking=False)


def test_it_can_be_stopped_before_it_started(database: Database, clock: Clock) -> None:
    new_heart(database, clock).stop()


def test_its_clock_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test can put the machine to sleep; but the clock that is read must be the one that counts it."""
    read = list[int]()
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read.append(clock) or 7.0)
    assert suspend_clock() == 7.0
    assert read == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]
    if sys.platform == "linux":
        assert read == [7]  # its number there, by any name


# On real databases


def heart_of(worker: Worker, engine: Engine, *held: Lease) -> Heart:
    return Heart(engine, [worker.id], lease=LEASE, beat=BEAT, held=lambda: held, tell=lambda pulse: None)


def test_a_beat_learns_what_is_lost(actors: Actors) -> None:
    kept, cancelled = actors.add(), actors.add()
    worker = actors.worker()
    leases = {job.id: job.lease for job in worker.claim(2)}
    actors.sql(f"delete from dibs.jobs where id = {cancelled}")
    pulse = heart_of(worker, actors.engine, *leases.values()).run_once()
    assert pulse.beat is not None
    assert pulse.beat.lost == {leases[cancelled]}
    assert (pulse.beat.alive, pulse.beat.claimers) == ({worker.id: 0}, 1)
    assert actors.state(kept) is JobState.RUNNING


def test_a_beat_hands_back_only_what_is_in_doubt(actors: Actors) -> None:
    worker = actors.worker()
    known, unknown = actors.add(), actors.add()
    (mine,) = worker.claim()
    worker.claim()
    heart = heart_of(worker, actors.engine, mine.lease)
    heart.doubt(worker.id, 2)
    heart.run_once()
    assert (actors.state(known), actors.state(unknown)) == (JobState.RUNNING, JobState.PENDING)
    assert actors.get(unknown).attempts == 0


def test_a_judge_recovers_in_its_beat(actors: Actors) -> None:
    judge, dead, job = actors.worker(), actors.worker(), actors.add()
    dead.claim()
    actors.age(dead, 2 * LEASE)
    actors.trust(judge)
    heart = Heart(
        actors.engine, [judge.id], lease=LEASE, beat=BEAT, held=lambda: [], tell=lambda pulse: None, judge=True
    )
    assert heart.run_once().recovered == Recovered({job: dead.id}, frozenset({dead.id}))
    assert actors.state(job) is JobState.RETRY
