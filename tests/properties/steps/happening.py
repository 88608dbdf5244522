"""What happens around the operations: time passes, workers crash, two things happen at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dibs.operations import claims, workers
from tests.actors import Worker
from tests.properties.lab import Fate
from tests.properties.steps.living import BEAT, LEASE, Beats, Enlist, HandBack, Judges, Orphans
from tests.properties.steps.owning import Ending, Kind
from tests.properties.steps.people import Expired, Forget, LapsedKeys
from tests.properties.steps.step import QUEUES, Plan, Stage, Step
from tests.properties.values import DAY, SECOND, Place, wrong

CREW = 3  # workers at once, at most
LONG = 3600  # seconds; more than a lease


@dataclass(frozen=True)
class AtOnce(Step):
    """Two plans in flight; the first may take its time to commit."""

    left: Plan
    right: Plan
    linger: bool = False

    def make(self, stage: Stage, fate: Fate) -> None:
        """Whatever the one has in its hands, the other must not have."""
        stage.race(self.left, self.right, fate, linger=self.linger)


@dataclass(frozen=True)
class Newcomer(Step):
    """A worker enlists; or one turns up whose beats have long gone through without a gap."""

    seasoned: bool

    def make(self, stage: Stage, fate: Fate) -> None:
        """Unless there are enough."""
        if len(stage.scene.crew) >= CREW:
            return
        stage.do(Enlist(), fate)
        if self.seasoned:
            hand = stage.scene.crew[-1]
            stage.lab.actors.trust(Worker(stage.lab.engine, hand.id, hand.name), LONG)
            row = stage.scene.model.workers[hand.id]
            row.steady_since = row.steady_since.plus(-LONG)
            stage.tell(f"{hand.name} has beaten without a gap for an hour")


@dataclass(frozen=True)
class Pulse(Step):
    """A worker beats, hands back what is in doubt, and judges the others, as workers do."""

    who: int
    steady: bool = True

    def make(self, stage: Stage, fate: Fate) -> None:
        """One after the other."""
        stage.do(Beats(self.who, self.steady), fate)
        stage.do(HandBack(self.who), fate)
        stage.do(Judges(self.who), fate)


@dataclass(frozen=True)
class Crash(Step):
    """A worker is gone, and only its row remains."""

    who: int

    def make(self, stage: Stage, fate: Fate) -> None:
        """Nobody is told."""
        if hand := stage.scene.hand(self.who):
            stage.scene.leaves(hand)
            stage.tell(f"{hand.name} crashes")


@dataclass(frozen=True)
class Vanish(Step):
    """Somebody deletes a worker's row by hand; its jobs are freed."""

    who: int

    def make(self, stage: Stage, fate: Fate) -> None:
        """Alive or not."""
        if (worker := stage.scene.row(self.who)) is not None:
            stage.lab.actors.sql(f"delete from dibs.workers where id = {worker}")
            stage.tell(f"the row of {stage.scene.model.workers.pop(worker).name} is deleted by hand")
            stage.do(Orphans(), fate)


@dataclass(frozen=True)
class Age(Step):
    """One worker's last beat is longer ago, or in the future: it went away, or its clock was stepped."""

    who: int
    seconds: int

    def make(self, stage: Stage, fate: Fate) -> None:
        """Alive or not."""
        if (worker := stage.scene.row(self.who)) is not None:
            row = stage.scene.model.workers[worker]
            stage.lab.actors.age(Worker(stage.lab.engine, worker, row.name), self.seconds)
            row.beat_at = row.beat_at.plus(-self.seconds)
            stage.tell(f"the last beat of {row.name} is {self.seconds} s longer ago")


@dataclass(frozen=True)
class PassTime(Step):
    """Nobody does anything for a while."""

    seconds: int

    def make(self, stage: Stage, fate: Fate) -> None:
        """For everything in the database, and for what somebody noted of it."""
        stage.lab.pass_time(self.seconds)
        stage.scene.model.pass_time(self.seconds)
        stage.scene.noted = [(worker, self._before(beat_at)) for worker, beat_at in stage.scene.noted]
        stage.tell(f"{self.seconds} s pass")

    def _before(self, moment: Any) -> Any:
        return moment - (self.seconds * SECOND if isinstance(moment, int) else timedelta(seconds=self.seconds))


@dataclass(frozen=True)
class Prune(Step):
    """What has lapsed, or has expired after some days, is deleted."""

    days: int

    def make(self, stage: Stage, fate: Fate) -> None:
        """As a pruner does: look, then delete what was found."""
        if self.days:
            PassTime(self.days * DAY // SECOND).make(stage, fate)
        stage.do(LapsedKeys(), fate)
        for place in (Place.DEAD, Place.HISTORY):
            stage.do(Expired(place))
            stage.do(Forget(place), fate)


class ToTheEnd(Step):
    """All workers die, all queues are resumed, and one worker runs everything there is."""

    def make(self, stage: Stage, fate: Fate) -> None:
        """Then nothing is left."""
        model, actors, run = stage.scene.model, stage.lab.actors, stage.lab.engine.run
        if not any(job.live for job in model.jobs.values()):
            return
        run(workers.recover(known=list(model.workers)))
        for queue in model.paused:
            actors.resume(queue)
        worker = actors.worker(lease=LEASE, beat=BEAT)
        while True:
            actors.make_due()
            if not (taken := worker.claim(100, *QUEUES)):
                break
            run(claims.settle([Ending(Kind.OK).settle(job) for job in taken]))
        stage.look()
        for job in model.jobs.values():
            where = [place for place in Place if job.id in getattr(stage.seen, place)]
            wrong(len(where) != 1 or Place.JOBS in where, f"{job.name} is in {where}, and should have come to its end")
        held = [key for key, (_, until) in stage.seen.keys.items() if until is None]
        wrong(held, f"the keys {held} are held, and nobody lives")
