"""Jobs are claimed, settled and settled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from typing import Any

from dibs import ladder, lifecycle
from dibs.errors import LeaseLost
from dibs.job import LEVELS, Claimed, JobId, Lease
from dibs.ladder import START
from dibs.operations import claims, jobs
from dibs.operations.claims import Settle, Want
from dibs.operations.rows import moment as as_moment
from dibs.payload import encode
from tests.properties.lab import Answer
from tests.properties.look import Look
from tests.properties.model import Model
from tests.properties.steps.step import QUEUES, TYPES, Hand, Move, Plan, Scene, names
from tests.properties.values import SECOND, ModelJob, Moment, Verdict, wrong


class Kind(Enum):
    """How an attempt ends."""

    OK = auto()
    ERROR = auto()
    FATAL = auto()
    SNOOZE = auto()
    RELEASE = auto()

    def __repr__(self) -> str:
        return self.name


def outcome(job: Claimed, kind: Kind, delay: int) -> lifecycle.Outcome:
    """What the runner reports, for a job that is to be run or to be finished."""
    failed = lifecycle.Errored(encode(lifecycle.failure(job.attempts, "boom")), permanent=kind is Kind.FATAL)
    match kind:
        case Kind.RELEASE:
            return lifecycle.Released()
        case Kind.SNOOZE:
            return lifecycle.Released() if job.finishing else lifecycle.Snoozed(delay)
        case Kind.OK if job.finishing:
            return lifecycle.Finished()
        case Kind.FATAL if job.finishing:
            return lifecycle.Finished(hook_error="the hook died")
        case Kind.OK:
            return lifecycle.Successful(encode({"ok": job.attempts}))
        case _:
            return failed


@dataclass(frozen=True)
class Ending:
    """How an attempt ends, how long until the next, and for how many days a success is kept."""

    kind: Kind
    delay: int = 0
    days: int = 7

    def settle(self, job: Claimed) -> Settle:
        """As a write-back."""
        change = lifecycle.after(
            job, outcome(job, self.kind, self.delay), lambda _: self.delay, has_hook=job.type == TYPES[1]
        )
        return Settle(job.lease, change, self.days)


@dataclass(frozen=True)
class Turn(Plan):
    """Settle some of what a worker holds, claim what is next."""

    who: int = 0
    endings: tuple[Ending, ...] = ()
    limit: int = 0
    last: bool = True  # also jobs on their last attempt
    reverse: bool = False  # the second queue first
    suspects: int = 1
    knows: tuple[str, ...] = TYPES
    cursor: bool = False  # from where the worker's cursor is, wake-ups being lost

    def move(self, scene: Scene) -> Move | None:
        """Takes the leases that it settles out of the worker's hands."""
        hand = scene.hand(self.who)
        if hand is None:
            return None
        settles = [ending.settle(job) for ending, job in zip(self.endings, hand.held.values(), strict=False)]
        want = self._want(scene, hand) if self.limit else None
        if want is None and not settles:
            return None
        for settle in settles:
            del hand.held[settle.lease]
        title = (
            f"{hand.name} settles {', '.join(_say(scene, s) for s in settles) or 'nothing'}, claims up to {self.limit}"
        )

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            return apply_turn(model, answer, moment, look, want, settles, exact=not self.cursor)

        def learn(answer: Answer) -> None:
            self._learn(scene, hand, want, settles, answer)

        return Move(title, claims.turn(want, settles), apply, learn, once=True)

    def _want(self, scene: Scene, hand: Hand) -> Want:
        hand.turns += 1
        names = QUEUES[::-1] if self.reverse else QUEUES
        keys = ladder.ranges(tuple(names), last=self.last, coin=self.reverse)
        ranges = [(*key, *START) for key in keys]
        if self.cursor:
            ranges = hand.ladders.ask(keys, scene.now / SECOND)
        unknown = [name for name in TYPES if name not in self.knows]
        return Want(hand.id, hand.turns, self.limit, ranges, self.suspects, unknown)

    def _learn(self, scene: Scene, hand: Hand, want: Want | None, settles: list[Settle], answer: Answer) -> None:
        if not answer.heard:
            hand.unsent += settles
            if want is not None:
                hand.doubts.append(want.number)
            return
        turn: claims.Turn = answer.value
        for job in turn.claimed:
            hand.held[job.lease] = scene.papers[job.lease] = job
        if want is not None and self.cursor:
            last = {
                (job.queue, job.rank): ladder.Place(_time(job.run_at), job.id)
                for job in turn.claimed
                if not job.suspect
            }
            suspects = {(job.queue, job.rank % LEVELS) for job in turn.claimed if job.suspect}
            read = ladder.Read(_time(turn.clock), want.limit, turn.picked, last, turn.paused, suspects)
            hand.ladders.took([(queue, rank) for queue, rank, *_ in want.ranges], read)


def _say(scene: Scene, settle: Settle) -> str:
    change = settle.change
    what = change.state if isinstance(change, lifecycle.Done) else f"{change.way.name} in {change.delay:g} s"
    return f"{scene.call(settle.lease)} ({what})"


def _time(value: Any) -> datetime:
    found = as_moment(value)
    assert found is not None
    return found


def apply_turn(
    model: Model,
    answer: Answer,
    moment: Moment,
    look: Look,
    want: Want | None,
    settles: Sequence[Settle],
    *,
    exact: bool = True,
) -> str:
    """Settle, then claim; what was said of it must be so."""
    wrong(answer.error, f"it raised {answer.error!r}")
    if answer.times == 0:
        return "never arrived"
    verdicts = [(settle.lease.job_id, model.settle(settle, moment)) for settle in sorted(settles, key=_lease)]
    taken = [] if want is None else _taken(answer, look, want)
    if want is not None:
        model.claim(
            want, taken, moment if exact else replace(moment, racing=True, still=frozenset()), ordered=answer.heard
        )
    came = "done" if want is None else f"claimed {names(model, [job_id for job_id, _ in taken])}"
    if not answer.heard:
        return f"{came}, and nobody heard"
    turn: claims.Turn = answer.value
    wrong(want and turn.paused != model.paused, f"told paused were {turn.paused}, and should be {model.paused}")
    for job in turn.claimed:
        _check_claimed(model.jobs[job.id], job)
    lost = _check_verdicts(turn, verdicts)
    return came + (f", lost {names(model, lost)}" if lost else "")


def _lease(settle: Settle) -> Lease:
    return settle.lease


def _check_verdicts(turn: claims.Turn, verdicts: Sequence[tuple[JobId, Verdict]]) -> set[JobId]:
    """Which were told lost. Of two leases of one job that were both refused, one is told of."""
    settled = {job_id for job_id, verdict in verdicts if verdict == "settled"}
    refused = [(job_id, verdict) for job_id, verdict in verdicts if job_id not in settled]
    told = {**dict.fromkeys(turn.lost, "lost"), **turn.before}
    wrong(told.keys() != dict(refused).keys(), f"refused were {told}, and should be {refused}")
    wrong(told.items() - set(refused), f"refused were {told}, and should be {refused}")
    return set(turn.lost)


def _taken(answer: Answer, look: Look, want: Want) -> list[tuple[JobId, int]]:
    """What a claim took: as it was told or, if nobody heard, by the tables."""
    if answer.heard:
        return [(job.id, job.token) for job in answer.value.claimed]
    mark = want.worker << claims.CLAIM_BITS | want.number
    return [(JobId(job_id), row["token"]) for job_id, row in look.jobs.items() if row["held"] and row["worker"] == mark]


def _check_claimed(job: ModelJob, claimed: Claimed) -> None:
    told = (
        claimed.type,
        claimed.queue,
        claimed.attempts,
        claimed.max_attempts,
        claimed.rank,
        claimed.crashes,
        claimed.finishing,
    )
    spec = job.spec
    so = (spec.type, spec.queue, job.attempts, spec.max_attempts, job.rank, job.crashes, job.finishing)
    wrong(told != so, f"{job.name} was handed out as {told}, and is {so}")


@dataclass(frozen=True)
class Again(Plan):
    """Settle by any lease that was ever given: a second time, too late, or for a worker that is thought dead."""

    lease: int
    ending: Ending

    def move(self, scene: Scene) -> Move | None:
        """Alone."""
        lease = scene.lease(self.lease)
        if lease is None:
            return None
        settle = self.ending.settle(scene.papers[lease])

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            return apply_settles(model, answer, moment, look, [settle])

        return Move(f"somebody settles {_say(scene, settle)}", claims.settle([settle]), apply)


@dataclass(frozen=True)
class Resend(Plan):
    """The settles of a turn whose answer was lost go again, alone."""

    who: int

    def move(self, scene: Scene) -> Move | None:
        """Found settled counts as done."""
        hand = scene.hand(self.who, lambda hand: bool(hand.unsent))
        if hand is None:
            return None
        settles = list(hand.unsent)

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            return apply_settles(model, answer, moment, look, settles)

        def learn(answer: Answer) -> None:
            hand.unsent = [settle for settle in hand.unsent if settle not in settles]

        title = f"{hand.name} settles again {', '.join(_say(scene, settle) for settle in settles)}"
        return Move(title, claims.settle(settles), apply, learn)


def apply_settles(model: Model, answer: Answer, moment: Moment, look: Look, settles: Sequence[Settle]) -> str:
    """As often as it was carried out."""
    for _ in range(answer.times - 1):
        for settle in settles:
            model.settle(settle, moment)
    return apply_turn(model, answer, moment, look, None, settles)


@dataclass(frozen=True)
class Progress(Plan):
    """How far a job is, by any lease that was ever given."""

    lease: int
    percent: int

    def move(self, scene: Scene) -> Move | None:
        """Refused when the lease is not good."""
        lease = scene.lease(self.lease)
        if lease is None:
            return None

        def apply(model: Model, answer: Answer, moment: Moment, look: Look) -> str:
            good = model.progress(lease, self.percent)
            wrong(good == isinstance(answer.error, LeaseLost), f"the answer is {answer}, and the lease is {good=}")
            wrong(answer.error and not isinstance(answer.error, LeaseLost), f"it raised {answer.error!r}")
            return "written" if good else "refused"

        title = f"somebody reports {self.percent} % for {scene.call(lease)}"
        return Move(title, jobs.progress(lease, encode(self.percent)), apply)
