"""A walk: random steps on a real engine, each compared with the model before the next."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.properties.lab import Answer, Fate, Lab
from tests.properties.look import Look, compare, compare_versions
from tests.properties.model import Model
from tests.properties.steps.adding import AddMany
from tests.properties.steps.happening import Newcomer, ToTheEnd
from tests.properties.steps.owning import Turn
from tests.properties.steps.step import Move, Plan, Scene, Step
from tests.properties.strategies import fates, many, steps
from tests.properties.values import Disagreement, Moment

UNHEARD = {Fate.ANSWERED: (), Fate.LOST: (0,), Fate.CUT: (1,), Fate.HALF: (0, 1)}  # which of two turns at once


class Walk(RuleBasedStateMachine):
    """One walk. One rule for all steps, so that they come as often as their weights say."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self.lab = lab
        lab.reset()
        self.scene = Scene(Model())
        self.seen = lab.look()
        self.story: list[str] = []
        self.broken = False

    @initialize(first=many)
    def begin(self, first: AddMany) -> None:
        """Two workers, one of whom has been there for long, and some jobs."""
        for step in (Newcomer(seasoned=False), Newcomer(seasoned=True), first):
            self._make(step)

    @rule(step=steps, fate=fates)
    def step(self, step: Step, fate: Fate) -> None:
        """Anything; but there is always somebody to work."""
        if not self.scene.crew:
            self._make(Newcomer(seasoned=False))
        self._make(step, fate)

    def _make(self, step: Step, fate: Fate = Fate.ANSWERED) -> None:
        """If it fails, say how it came to this."""
        try:
            step.make(self, fate)
        except Exception as error:
            self.broken = True
            told = "\n".join(f"  {n:2}. {line}" for n, line in enumerate(self.story, 1))
            error.add_note(f"The steps were:\n{told}\nand the last one was {step} [{fate.name.lower()}]")
            raise

    def do(self, plan: Plan, fate: Fate = Fate.ANSWERED) -> None:
        """Carry out one plan, if there is anybody to do so, and compare."""
        if move := plan.move(self.scene):
            answer = self.lab.carry(move.operation, fate, once=move.once)
            note = "" if fate is Fate.ANSWERED else f" [{fate.name.lower()}]"
            self._check([(move, answer)], move.title + note)

    def race(self, left: Plan, right: Plan, fate: Fate, *, linger: bool) -> None:
        """Carry out two at once, and compare. Of two turns one answer may be lost, or both."""
        moves = [move for move in (left.move(self.scene), right.move(self.scene)) if move is not None]
        if len(moves) == 2:
            answers = list(self.lab.race(moves[0].operation, moves[1].operation, linger=linger))
            turns = self._may_claim(left) and self._may_claim(right)
            title = f"{moves[0].title} WHILE {moves[1].title}"
            if moves[0].once and moves[1].once:  # else the other could take away what nobody has heard of
                for number in UNHEARD[fate]:
                    answers[number] = replace(answers[number], value=None, heard=False)
                title += f" [{fate.name.lower()}: {UNHEARD[fate]}]" if UNHEARD[fate] else ""
            self._check(list(zip(moves, answers, strict=True)), title, turns=turns)
        for move in moves if len(moves) == 1 else ():
            self._check([(move, self.lab.carry(move.operation, Fate.ANSWERED))], move.title)

    def _may_claim(self, plan: Plan) -> bool:
        """A turn of a worker that is enlisted: it takes what it picks, and so leaves nothing behind for the other."""
        hand = self.scene.hand(plan.who) if isinstance(plan, Turn) else None
        return hand is not None and hand.id in self.scene.model.workers

    def tell(self, line: str) -> None:
        """Something happened."""
        self.story.append(line)

    def look(self) -> Moment:
        """See how things are; the time since the last look."""
        before, self.seen = self.seen, self.lab.look()
        compare_versions(before, self.seen)
        self.scene.now = self.seen.now
        return Moment(before.now, self.seen.now)

    def _check(self, moves: list[tuple[Move, Answer]], title: str, *, turns: bool = False) -> None:
        """Tell the model, compare it with the tables, then tell the callers."""
        before = self.seen.jobs
        moment = self.look()
        try:
            if len(moves) == 1:
                came = _apply(self.scene.model, moves, moment, self.seen)
            else:
                still = frozenset(job for job, row in self.seen.jobs.items() if turns and before.get(job) == row)
                came = self._either_order(moves, replace(moment, racing=True, still=still))
        except Disagreement:
            self.tell(f"{title}: ...")
            raise
        self.tell(f"{title}: {came}")
        for move, answer in moves:
            move.learn(answer)

    def _either_order(self, moves: list[tuple[Move, Answer]], moment: Moment) -> str:
        """Two at once must come to what one after the other comes to."""
        problems = []
        for order in (moves, moves[::-1]):
            model = deepcopy(self.scene.model)
            try:
                came = _apply(model, order, moment, self.seen)
            except Disagreement as problem:
                problems.append(str(problem))
            else:
                self.scene.model = model
                return came
        raise Disagreement(f"{problems[0]}\nand in the other order:\n{problems[1]}")

    def teardown(self) -> None:
        """Whatever happened, every job can still be brought to its end: nothing that was committed is lost."""
        if not self.broken:
            self._make(ToTheEnd())


def _apply(model: Model, moves: list[tuple[Move, Answer]], moment: Moment, look: Look) -> str:
    came = [move.apply(model, answer, moment, look) for move, answer in moves]
    compare(model, look)
    return "; ".join(came)
