"""`python -m benchmarks [question ...]`: measures, prints each answer as it comes, fails if one is not good enough."""

import argparse
import importlib
import sys
import time
import traceback
from math import inf

from benchmarks.places import NEWEST, Bench
from benchmarks.report import Answer, Bound, Figure, dump
from tests.servers import Leash, installations

QUESTIONS = (
    "turns",
    "enqueue",
    "slope",
    "steady",
    "growth",
    "late",
    "workers",
    "start",
    "live",
    "adopted",
    "batches",
    "providers",
)
ROUNDS = 3


def main() -> int:
    """Ask the questions named, or all."""
    options = _options()
    with Leash.hold() as leash:
        bench = Bench(leash, quick=options.quick, rounds=options.rounds, server=options.server, only=options.only)
        answers = []
        for name in options.names or QUESTIONS:
            answers.append(_ask(name, bench))
            if not options.json:
                answers[-1].print()
            if options.record:
                bench.say(f"wrote {answers[-1].record()}")
    if options.json:
        print(dump(answers))
    return int(any(figure.holds is False for answer in answers for figure in answer.figures))


def _ask(name: str, bench: Bench) -> Answer:
    began = time.monotonic()
    module = importlib.import_module(f"benchmarks.{name}")
    figures = []
    try:
        for figure in module.measure(bench):
            bench.say("  ".join(cell for cell in figure.cells() if cell))
            figures.append(figure)
    except Exception as error:
        traceback.print_exc()
        figures.append(Figure(f"ended early: {str(error).splitlines()[-1]}", (inf,), Bound(0, at_most=True)))
    mode = f"{'quick' if bench.quick else 'full'}, {bench.default}"
    return Answer(name, (module.__doc__ or "").splitlines()[0], mode, time.monotonic() - began, figures)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="question", help=f"of: {', '.join(QUESTIONS)} (all)")
    parser.add_argument("--quick", action="store_true", help="smaller and noisier, in minutes")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="a figure is the median of so many (3)")
    parser.add_argument("--server", choices=installations(), default=NEWEST, help=f"PostgreSQL to use ({NEWEST})")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this in their name")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/<question>.md too")
    options = parser.parse_args()
    if unknown := set(options.names) - set(QUESTIONS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
