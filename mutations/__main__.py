"""`make mutate`: apply each breakage to a copy of the tree, run the tests meant for it, and fail unless all are caught.

python -m mutations              every breakage
python -m mutations token        those whose name contains a word
python -m mutations --list       their names
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mutations.breakage import Breakage
from mutations.catalogue import BREAKAGES
from tests.servers import Leash, Server, installations

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md")
AT_ONCE = 2
PATIENCE, PATIENCE_WHOLE = 600, 3000  # seconds for the tests of one breakage, and for those of all
PASSED, FAILED, TOO_LATE = 0, 1, -1
SUMMARY = re.compile(r"^=*\s*[1-9]\d* failed\b.* in \d", re.MULTILINE)  # what is left open by it may be told after
# What a database or Python says of a text that it cannot make sense of.
INVALID = re.compile(
    r"psycopg\.errors\.(Syntax|Undefined|Ambiguous|InvalidColumn|Datatype|Grouping)\w*.*"
    r"|sqlite3\.OperationalError: (near|no such|ambiguous|unrecognized|incomplete).*"
    r"|^E +(SyntaxError|IndentationError|NameError|ImportError|UnboundLocalError).*",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of one breakage."""

    breakage: Breakage
    code: int
    seconds: float
    said: str

    @property
    def caught(self) -> bool:
        """A test failed. (No test at all, or a broken test run, catches nothing.)"""
        return self.code == FAILED and self.failed and not self.invalid

    @property
    def failed(self) -> bool:
        """A test ran and failed. One that could not even be set up says nothing of what it is about."""
        return SUMMARY.search(self.said) is not None

    @property
    def invalid(self) -> str:
        """Why what it broke is no code any more: whatever runs that fails, and nothing is learned."""
        found = INVALID.search(self.said)
        return found[0].strip() if found else ""

    @property
    def word(self) -> str:
        """For people."""
        if self.caught:
            return "caught"
        return f"INVALID: {self.invalid}" if self.invalid else f"NOT CAUGHT (pytest exited {self.code})"


def copy_tree(target: Path) -> Path:
    """Everything that the tests need, to be broken at will."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target / name)
    return target


def run_tests(
    tree: Path, tests: Sequence[str], engine: str, server: str, *more: str, patience: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """The tests in a copy, on its own sources, stopping at the first failure.

    What was compiled is kept: Python knows a source that has changed by its second, and no run is over within one.
    """
    chosen = {"postgres": ["-k", "postgres-url"], "sqlite": ["-k", "sqlite and not classic"]}.get(engine, [])
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "DIBS_TEST_URL": server,
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *chosen, *tests]
    try:
        return subprocess.run(
            [*command, *more], cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=patience
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
        return subprocess.CompletedProcess(command, TOO_LATE, f"{said}\ngave up after {patience:g} s", "")


def judge(breakage: Breakage, trees: SimpleQueue[Path], server: str) -> Verdict:
    """Break a copy, run its tests, mend it."""
    tree = trees.get()
    began = time.monotonic()
    try:
        breakage.apply(tree)
        ended = run_tests(tree, breakage.tests, breakage.engine, server)
    finally:
        breakage.undo(tree, ROOT)
        trees.put(tree)
    return Verdict(breakage, ended.returncode, time.monotonic() - began, ended.stdout + ended.stderr)


def first_failure(verdict: Verdict) -> str:
    """The test that noticed, by its name."""
    failures = [line for line in verdict.said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0].split(" ")[1].rpartition("/")[2] if failures else ""


def report(console: Console, verdicts: Sequence[Verdict]) -> None:
    """One line for each breakage."""
    table = Table("breakage", "", "noticed by", "s", title="breakages")
    for verdict in verdicts:
        mark = "[green]caught[/]" if verdict.caught else f"[bold red]{escape(verdict.word)}[/]"
        table.add_row(verdict.breakage.name, mark, first_failure(verdict), f"{verdict.seconds:.0f}")
    console.print(table)


def main() -> int:
    """Whole tests first, broken ones after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [each for each in BREAKAGES if not options.words or any(word in each.name for word in options.words)]
    if options.list:
        print("\n".join(each.name for each in chosen))
        return 0
    console = Console(width=150)
    with Leash.hold() as leash, tempfile.TemporaryDirectory(prefix="dibs-mutate-") as folder:
        server = Server.create(installations()["postgres18"], leash, name="mutate").url()
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            trees.put(copy_tree(Path(folder) / str(number)))
        return _judge_all(console, chosen, trees, server) if whole(console, chosen, trees, server) else 1


def whole(console: Console, chosen: Sequence[Breakage], trees: SimpleQueue[Path], server: str) -> bool:
    """The tests pass on whole code; else a breakage proves nothing."""
    tree = trees.get()
    try:
        for engine in sorted({each.engine for each in chosen}):
            tests = sorted({test for each in chosen if each.engine == engine for test in each.tests})
            together = ("-n", str(os.cpu_count()), "--dist", "worksteal")
            ended = run_tests(tree, tests, engine, server, *together, patience=PATIENCE_WHOLE)
            console.print(f"whole: {engine or 'all'}: {ended.stdout.strip().splitlines()[-1]}")
            if ended.returncode != PASSED:
                console.print(ended.stdout[-3000:])
                return False
        return True
    finally:
        trees.put(tree)


def _judge_all(console: Console, chosen: Sequence[Breakage], trees: SimpleQueue[Path], server: str) -> int:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = []
        for verdict in pool.map(lambda each: judge(each, trees, server), chosen):
            console.print(f"{verdict.word:<10} {verdict.breakage.name}", markup=False)
            verdicts.append(verdict)
    report(console, verdicts)
    missed = [verdict for verdict in verdicts if not verdict.caught]
    for verdict in missed:
        console.print(f"\n{verdict.breakage.name}\n" + verdict.said[-2000:], markup=False)
    console.print(f"{len(verdicts) - len(missed)} passed, {len(missed)} failed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
