"""The judge's own book: what many write at once, and what a killed writer left behind."""

from pathlib import Path

import pytest

from tests.scenarios.ledger import Entry, Ledger


@pytest.mark.parametrize("torn", ["\n", "\ncla", "\nclaimed", "\nclaimed 12", "\nclaimed 12 34", "\nclaimed 12 34 5"])
def test_a_write_cut_short_counts_for_nothing_and_spoils_nothing(torn: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.write("claimed", (1, 10), (2, 20), process=7)
    with ledger.path.open("a") as file:
        file.write(torn)
    before = list(ledger.entries())
    ledger.write("settled", (1, 10), process=8)
    assert before == [Entry("claimed", 1, 10, 7), Entry("claimed", 2, 20, 7)]
    assert list(ledger.entries()) == [*before, Entry("settled", 1, 10, 8)]
