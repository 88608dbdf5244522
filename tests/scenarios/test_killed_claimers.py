"""Claimers killed by SIGKILL at random: no job is lost, none has two owners, and every kill is healed."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

import pytest

from dibs.operations import claims
from dibs.operations.claims import Settle
from dibs.worker.heart import Pulse
from tests.actors import Actors
from tests.scenarios.claimer import at_work, success
from tests.scenarios.crew import Crew, Flag, until
from tests.scenarios.ledger import Entry, Ledger
from tests.scenarios.places import Place, Places, long

CLAIMERS, JUDGES = 4, 2
BATCH = 5
MUST_HIT = 20  # kills of an owner, whose job another then took over
SPARE = 2  # kills beyond: the server may still carry out the settle that a killed owner had sent
ATTEMPTS = 1_000  # more than there are kills: no job may fail for having had bad luck
STOCK = 300  # jobs that wait while killing goes on
LIFE = (0.02, 0.2)  # seconds between two kills: shorter than the stock lasts, so that a victim mostly owns jobs


@dataclass(frozen=True)
class Pace:
    """How long a lease lasts, how often claimers beat, and how long healing may take."""

    lease: float
    beat: float
    healing: float


QUICK = Pace(lease=2.0, beat=0.3, healing=30.0)
DEFAULT = Pace(lease=15.0, beat=3.0, healing=120.0)


def claim_and_run(place: Place, ledger: Ledger, pace: Pace, stop: Flag) -> None:
    """Claim, write it down, work a little, settle, write that down."""
    asyncio.run(_claim_and_run(place, ledger, pace, stop))


async def _claim_and_run(place: Place, ledger: Ledger, pace: Pace, stop: Flag) -> None:
    def heard(pulse: Pulse) -> None:
        if pulse.beat is not None:
            ledger.write("told", *[(lease.job_id, lease.token) for lease in pulse.beat.lost])

    async with at_work(place.open(), lease=pace.lease, beat=pace.beat, judge=True, heard=heard) as claimer:
        settles: list[Settle] = []
        while settles or not stop.is_set():
            turn = await claimer.turn(BATCH, settles)
            leases = [settle.lease for settle in settles]
            ledger.write("settled", *[(each.job_id, each.token) for each in leases if each.job_id not in turn.lost])
            ledger.write("refused", *[(each.job_id, each.token) for each in leases if each.job_id in turn.lost])
            ledger.write("claimed", *[(job.id, job.token) for job in turn.claimed])
            await asyncio.sleep(random.uniform(0.0, 0.08))
            settles = [success(job.lease) for job in turn.claimed]
            ledger.write("ran", *[(job.id, job.token) for job in turn.claimed])


def judge(place: Place, pace: Pace, stop: Flag) -> None:
    """Beat and judge, and claim nothing."""
    asyncio.run(_judge(place, pace, stop))


async def _judge(place: Place, pace: Pace, stop: Flag) -> None:
    async with at_work(place.open(), lease=pace.lease, beat=pace.beat, judge=True):
        await stop.wait()


@dataclass
class Story:
    """What the ledger tells about one job."""

    claims: list[tuple[int, Entry]] = field(default_factory=list)  # with their places in the ledger
    ran: set[int] = field(default_factory=set)
    settled: list[int] = field(default_factory=list)
    gave_up: set[int] = field(default_factory=set)  # tokens whose owner was told, or refused

    def add(self, place: int, entry: Entry) -> None:
        """One more line."""
        match entry.event:
            case "claimed":
                self.claims.append((place, entry))
            case "ran":
                self.ran.add(entry.token)
            case "settled":
                self.settled.append(entry.token)
            case "refused" | "told":
                self.gave_up.add(entry.token)

    def takeovers(self) -> Iterator[tuple[Entry, int]]:
        """Each claim that another followed, and where in the ledger that one stands."""
        self.claims.sort(key=lambda claim: claim[1].token >> 20)  # tokens grow
        for (_, entry), (place, _) in zip(self.claims, self.claims[1:], strict=False):
            yield entry, place


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres18", *long("sqlite-classic", "postgres16", "postgres-system")])
def test_killed_claimers_lose_nothing(kind: str, places: Places, crew: Crew, ledger: Ledger) -> None:
    kill_and_judge(kind, QUICK, places, crew, ledger)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "postgres18"])
def test_killed_claimers_lose_nothing_with_the_default_lease(
    kind: str, places: Places, crew: Crew, ledger: Ledger
) -> None:
    kill_and_judge(kind, DEFAULT, places, crew, ledger)


def kill_and_judge(kind: str, pace: Pace, places: Places, crew: Crew, ledger: Ledger) -> None:
    stop = crew.flag("stop")
    place, engine = places.fresh(kind)
    actors = Actors(engine)
    jobs = actors.add_many(STOCK, max_attempts=ATTEMPTS)
    for _ in range(JUDGES):
        crew.start(judge, place, pace, stop)
    claimers = [crew.start(claim_and_run, place, ledger, pace, stop) for _ in range(CLAIMERS)]
    hits = 0
    while hits < MUST_HIT + SPARE:
        time.sleep(random.uniform(*LIFE))
        until(lambda: any(claimed_by(each, ledger) for each in claimers), crew, "somebody claimed")
        victim = random.choice([each for each in claimers if claimed_by(each, ledger)])
        ledger.write("killed", (0, 0), process=victim.pid)
        crew.kill(victim)
        held = {token for (token,) in actors.sql("select token from dibs.jobs where held")}
        hits += bool(held & claimed_by(victim, ledger))
        claimers.remove(victim)
        claimers.append(crew.start(claim_and_run, place, ledger, pace, stop))
        missing = STOCK - engine.run(claims.available(["default"], STOCK))
        jobs += actors.add_many(missing, max_attempts=ATTEMPTS) if missing else []
    until(lambda: actors.sql("select count(*) from dibs.jobs") == [(0,)], crew, "all jobs ran", pace.healing)
    stop.set()
    crew.join()
    final = dict(actors.sql("select id, token from dibs.history"))
    verdict(jobs, final, list(ledger.entries()))


def claimed_by(member: BaseProcess, ledger: Ledger) -> set[int]:
    """The tokens of its claims."""
    return {entry.token for entry in ledger.entries() if (entry.event, entry.process) == ("claimed", member.pid)}


def owners_hit(entries: list[Entry]) -> set[int]:
    """Processes that were killed while they owned a job, as its next owner's claim shows."""
    killed = {entry.process for entry in entries if entry.event == "killed"}
    return {
        owner.process
        for story in stories_of(entries).values()
        for owner, _ in story.takeovers()
        if owner.process in killed and owner.token not in story.gave_up
    }


def stories_of(entries: list[Entry]) -> dict[int, Story]:
    stories: dict[int, Story] = defaultdict(Story)
    for place, entry in enumerate(entries):
        if entry.job:
            stories[entry.job].add(place, entry)
    return stories


def verdict(jobs: Sequence[int], final: dict[int, int], entries: list[Entry]) -> None:
    killed = {entry.process: place for place, entry in enumerate(entries) if entry.event == "killed"}
    assert sorted(final) == sorted(jobs), "jobs were lost"
    for job, story in stories_of(entries).items():
        for owner, place in story.takeovers():
            if owner.token in story.gave_up:
                continue
            assert killed.get(owner.process, place) < place, f"job {job} had two owners: {story}"
        last = story.claims[-1][1]
        assert final[job] == last.token, f"job {job} was settled by a late owner: {story}"
        assert last.token in story.ran, f"job {job} was settled before it ran: {story}"
        assert set(story.settled) <= {last.token}, f"job {job} took a late owner's word: {story}"
        assert len(story.settled) == 1 or last.process in killed, f"job {job} was settled {len(story.settled)} times"
    assert len(owners_hit(entries)) >= MUST_HIT
