"""Workers come, live and die, and others find out."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any

from dibs.job import Lease, WorkerId
from dibs.ladder import START
from dibs.operations import workers
from tests.properties.lab import Answer
from tests.properties.look import Look
from tests.properties.model import Model
from tests.properties.steps.step import Hand, Move, Plan, Scene, names, repeat, same
from tests.properties.values import Moment, wrong

LEASE, BEAT = 1000.0, 200.0  # seconds; far longer than a walk takes, so that only time that we let pass counts


@dataclass(frozen=True)
class Enlist(Plan):
    """A new worker."""

    def move(self, scene: Scene) -> Move:
        """Under a random number."""
        scene.enlisted += 1
        hand = Hand(WorkerId(secrets.randbits(workers.NUMBER_BITS)), f"worker {scene.enlisted}")

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            model.enlist(hand.id, hand.name, LEASE, BEAT, moment)
            same(answer, True)
            return "welcome"

        def learn(answer: Answer) -> None:
            scene.crew.append(hand)

        return Move(f"{hand.name} enlists", workers.enlist(hand.id, hand.name, lease=LEASE, beat=BEAT), apply, learn)


@dataclass(frozen=True)
class Beats(Plan):
    """A worker says that it lives, and what it holds."""

    who: int
    steady: bool = True

    def move(self, scene: Scene) -> Move | None:
        """It learns what it lost, and whether it is thought dead."""
        hand = scene.hand(self.who)
        if hand is None:
            return None
        held = list(hand.held)

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            expected = repeat(answer, lambda: model.beat(hand.id, held, moment, steady=self.steady))
            if moment.racing:  # a beat tells what was so when it began; but what it calls lost stays lost
                wrong(answer.error, f"it raised {answer.error!r}")
                good = [lease for lease in answer.value.lost if _holds(look, lease)]
                wrong(good, f"{', '.join(map(scene.call, good))} were told lost, and are not")
            else:
                same(answer, expected)
            lost = ", ".join(map(scene.call, answer.value.lost))
            return ("alive" if answer.value.alive else "thought dead") + (f", lost {lost}" if lost else "")

        def learn(answer: Answer) -> None:
            for lease in answer.value.lost:
                hand.held.pop(lease, None)
            if not answer.value.alive and hand in scene.crew:
                scene.leaves(hand)

        title = f"{hand.name} beats{'' if self.steady else ' after a gap by its own clock'}"
        return Move(title, workers.beat([hand.id], held, steady=self.steady), apply, learn)


def _holds(look: Look, lease: Lease) -> bool:
    row = look.jobs.get(lease.job_id)
    return row is not None and bool(row["held"]) and row["token"] == lease.token


@dataclass(frozen=True)
class HandBack(Plan):
    """A worker hands back what the claims took that it never heard of."""

    who: int

    def move(self, scene: Scene) -> Move | None:
        """Attempt not used."""
        hand = scene.hand(self.who, lambda hand: bool(hand.doubts))
        if hand is None:
            return None
        doubts, held = list(hand.doubts), list(hand.held)

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            back = repeat(answer, lambda: model.hand_back(hand.id, doubts, held))
            same(answer, back)
            return f"{back} jobs"

        def learn(answer: Answer) -> None:
            hand.doubts = [number for number in hand.doubts if number not in doubts]

        operation = workers.hand_back([hand.id], [(hand.id, number) for number in doubts], held)
        return Move(f"{hand.name} hands back the claims in doubt", operation, apply, learn)


@dataclass(frozen=True)
class Leave(Plan):
    """A worker stops."""

    who: int

    def move(self, scene: Scene) -> Move | None:
        """It hands back what it still holds."""
        hand = scene.hand(self.who)
        if hand is None:
            return None

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            back = repeat(answer, lambda: model.leave(hand.id))
            same(answer, back)
            return f"hands {back} jobs back"

        def learn(answer: Answer) -> None:
            if hand in scene.crew:
                scene.leaves(hand)

        return Move(f"{hand.name} leaves", workers.leave([hand.id]), apply, learn)


class Witness(Enum):
    """Why a worker is taken for dead."""

    KNOWN = auto()  # somebody reaped its process
    JUDGE = auto()  # another worker finds it silent
    SILENT = auto()  # somebody noted that it was silent, and it still is

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Recover(Plan):
    """The jobs of the dead go back to waiting."""

    witness: Witness
    who: int

    def move(self, scene: Scene) -> Move | None:
        """By one of the ways to know."""
        worker = scene.row(self.who)
        if worker is None:
            return None
        return self.by(scene, worker)

    def by(self, scene: Scene, worker: WorkerId) -> Move:
        """The same, of or by this worker."""
        name = scene.model.workers[worker].name
        match self.witness:
            case Witness.KNOWN:
                return self._move(scene, f"{name} is known to be dead", known=[worker])
            case Witness.JUDGE:
                return self._move(scene, f"{name} judges the others", judge=worker)
            case Witness.SILENT:
                return self._move(scene, f"whoever is still silent of {len(scene.noted)} is dead", silent=scene.noted)

    def _move(
        self,
        scene: Scene,
        title: str,
        *,
        judge: WorkerId | None = None,
        known: Sequence[WorkerId] = (),
        silent: Sequence[tuple[WorkerId, Any]] = (),
    ) -> Move:
        silent = list(silent)

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            wrong(answer.error, f"it raised {answer.error!r}")
            noted = [(worker, _micros(beat_at)) for worker, beat_at in silent]
            for _ in range(answer.times - 1):
                model.bury(model.recover(judge, known, noted, moment), moment)
            expected, actual = model.recover(judge, known, noted, moment), answer.value
            if moment.racing:  # whom another step had in its hands was rightly passed over
                more = actual.jobs.items() - expected.jobs.items() or actual.workers - expected.workers
                wrong(more, f"recovered was {actual}, and at most {expected} was dead")
            else:
                same(answer, expected)
            model.bury(actual, moment)
            return f"recovered {names(model, actual.jobs)}, {len(actual.workers)} workers gone"

        return Move(title, workers.recover(judge, known, silent), apply)


def _micros(value: Any) -> int:
    return value if isinstance(value, int) else round((value - START.at) / timedelta(microseconds=1))


@dataclass(frozen=True)
class Judges(Plan):
    """A worker that has just beaten judges the others."""

    who: int

    def move(self, scene: Scene) -> Move | None:
        """If it is not thought dead itself."""
        hand = scene.hand(self.who)
        if hand is None or hand.id not in scene.model.workers:
            return None
        return Recover(Witness.JUDGE, self.who).by(scene, hand.id)


@dataclass(frozen=True)
class NoteSilent(Plan):
    """Somebody looks who is silent."""

    leases: int

    def move(self, scene: Scene) -> Move:
        """Names and beats."""

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            silent = [row for row in model.workers.values() if row.silent(moment.after, self.leases)]
            told = [(worker, _micros(beat_at)) for worker, beat_at in answer.value]
            expected = sorted((row.id, row.beat_at.low) for row in silent)
            wrong(told != expected, f"silent are {told}, and should be {expected}")
            return ", ".join(row.name for row in silent) or "nobody"

        def learn(answer: Answer) -> None:
            scene.noted = answer.value

        return Move(f"who has been silent for {self.leases} leases?", workers.silent(self.leases), apply, learn)


@dataclass(frozen=True)
class Orphans(Plan):
    """Jobs whose worker has no row are freed."""

    def move(self, scene: Scene) -> Move:
        """Whoever removed it."""

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            freed = repeat(answer, lambda: model.orphans(moment))
            same(answer, freed)
            return f"{freed} jobs"

        return Move("orphans are freed", workers.recover_orphans(), apply)
