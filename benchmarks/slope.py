"""Do claims slow down while another session holds an old snapshot, so that no dead row can be cleaned up?

Two databases of one server, one with a snapshot from before its first job, slices in turn. The figure is how the held
one does beside the free one in the last tenth of the jobs, divided by the same in the first tenth.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from statistics import median

from benchmarks.loops import Dibs, fill
from benchmarks.places import Bench, checkpoint, held_snapshot, versions
from benchmarks.race import Contestant, Laps, Plan, race
from benchmarks.report import Bound, Figure, rate

JOBS = (500_000, 50_000)
TENTHS, SLICES = 10, 5  # slices in a tenth
REQUIRED = Bound(0.85)


@dataclass(frozen=True, slots=True)
class Case:
    """What goes through the queue, and who takes it."""

    server: str
    batch: int
    priorities: int
    claimers: int

    @property
    def retried(self) -> int:
        """In a hundred jobs."""
        return 20 if self.priorities > 1 else 0

    def __str__(self) -> str:
        kind = f"{self.priorities} priorities, {self.retried} % retried" if self.retried else "1 priority"
        return f"{self.server}, batch {self.batch}, {kind}, {self.claimers} claimer{'s' if self.claimers > 1 else ''}"


def measure(bench: Bench) -> Iterator[Figure]:
    """Every case."""
    cases = (Case(*options) for options in product(versions(), (200, 10), (1, 4), (1, 4)))
    for case in (case for case in cases if bench.wants(str(case))):
        rounds = [_round(bench, case, number) for number in range(bench.rounds)]
        ratios = tuple(_tenth(laps, TENTHS - 1) / _tenth(laps, 0) for laps in rounds)
        ours, theirs = (rate(median(laps[name].rate for laps in rounds)) for name in ("held", "free"))
        yield Figure(str(case), ratios, REQUIRED, ours=f"{ours} held", floor=f"{theirs} free")


def _round(bench: Bench, case: Case, number: int) -> dict[str, Laps]:
    bench.say(f"slope: {case}, round {number + 1}")
    slices = TENTHS * SLICES
    plan = Plan(case.claimers, slices, bench.size(*JOBS) // slices)
    with _contestants(bench, case, plan) as contestants:
        laps = race(contestants, plan)
    bench.say("slope: held / free by tenths: " + " ".join(f"{_tenth(laps, n):.2f}" for n in range(TENTHS)))
    return laps


@contextmanager
def _contestants(bench: Bench, case: Case, plan: Plan) -> Iterator[list[Contestant]]:
    with bench.database(case.server) as held, bench.database(case.server) as free, held_snapshot(held):
        for url in (held, free):
            fill(url, plan.needed, priorities=case.priorities)
        checkpoint(held)
        yield [Dibs(name, url, case.batch, retried=case.retried) for name, url in (("held", held), ("free", free))]


def _tenth(laps: dict[str, Laps], number: int) -> float:
    """The rate of the held database beside the free one in one tenth of the slices: whole sums, looks included."""
    part = slice(number * SLICES, (number + 1) * SLICES)
    return sum(laps["free"].seconds[part]) / sum(laps["held"].seconds[part])
