"""How much does it take before anything begins: `dibs --help`, and `import dibs` over bare Python?"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.places import Bench
from benchmarks.report import Bound, Figure

HELP, IMPORT = Bound(150, at_most=True), Bound(100, at_most=True)  # milliseconds of CPU
IMPORTS = {"import dibs": IMPORT, "from dibs import Dibs": None}  # a name loads what it needs when it is asked for
RUNS, QUICK_RUNS = 15, 7  # of which a round is the median


def measure(bench: Bench) -> Iterator[Figure]:
    """Milliseconds of CPU; what is compiled is there already."""
    runs = bench.size(RUNS, QUICK_RUNS)
    bench.say("start: dibs --help")
    yield Figure("dibs --help", tuple(_cpu(["-m", "dibs", "--help"], runs) for _ in range(bench.rounds)), HELP, " ms")
    for what, bound in IMPORTS.items():
        bench.say(f"start: {what}")
        pairs = [(_cpu(["-c", what], runs), _cpu(["-c", "pass"], runs)) for _ in range(bench.rounds)]
        ours, bare = (f"{median(each):.0f} ms" for each in zip(*pairs, strict=True))
        more = tuple(with_it - without for with_it, without in pairs)
        yield Figure(f"{what}, over bare Python", more, bound, " ms", ours, bare)


def _cpu(arguments: Sequence[str], runs: int) -> float:
    """The median of some runs, after one that compiles what is not compiled."""
    return median([_once(arguments) for _ in range(runs + 1)][1:])


def _once(arguments: Sequence[str]) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{arguments} ended with {process.returncode}"
    return 1000 * (used.ru_utime + used.ru_stime)
