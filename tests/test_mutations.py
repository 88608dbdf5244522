"""The breakages of `make mutate` fit the code as it is: found here in a second, and not at the end of a long run."""

from pathlib import Path

import pytest

from mutations.breakage import Breakage
from mutations.catalogue import BREAKAGES

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_breakage_fits(breakage: Breakage) -> None:
    for edit in breakage.edits:
        assert (ROOT / edit.file).read_text().count(edit.old) == 1
