"""The breakages of `make mutate` fit the code as it is: found here in a second, and not at the end of a long run."""

from pathlib import Path

import pytest

from mutations.__main__ import Verdict
from mutations.breakage import Breakage
from mutations.catalogue import BREAKAGES

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_breakage_fits(breakage: Breakage) -> None:
    for edit in breakage.edits:
        assert (ROOT / edit.file).read_text().count(edit.old) == 1


@pytest.mark.parametrize(
    "code, said, word",
    [
        (1, "E   assert 1 == 2\n1 failed, 3 passed in 2.00s", "caught"),
        (1, "E   assert 1 == 2\n1 failed, 1 error in 2.00s", "caught"),
        (0, "4 passed in 2.00s", "NOT CAUGHT (pytest exited 0)"),
        (1, "E   OSError: no room\n3 passed, 1 error in 2.00s", "NOT CAUGHT (pytest exited 1)"),
        (5, "no tests ran in 0.01s", "NOT CAUGHT (pytest exited 5)"),
        (
            1,
            'E   psycopg.errors.UndefinedColumn: column "nothing"\n1 failed in 2.00s',
            'INVALID: psycopg.errors.UndefinedColumn: column "nothing"',
        ),
        (1, "E   sqlite3.OperationalError: near\n1 failed in 2.00s", "INVALID: sqlite3.OperationalError: near"),
        (1, "E   NameError: name 'x'\n1 failed in 2.00s", "INVALID: E   NameError: name 'x'"),
    ],
)
def test_only_a_test_that_failed_has_caught_a_breakage(code: int, said: str, word: str) -> None:
    """What breaks everything tells nothing, and a test that could not be set up has not noticed anything."""
    assert Verdict(BREAKAGES[0], code, 0.0, said).word == word
