"""Tests are dealt to processes, and none is lost."""

import pytest

from tests.order import dealt


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
@pytest.mark.parametrize("slow, quick", [(0, 10), (5, 100), (50, 4), (3, 0)])
def test_none_is_lost(slow: int, quick: int, processes: int) -> None:
    items = list(range(slow + quick))
    assert sorted(dealt(items[:slow], items[slow:], processes)) == items


def test_each_begins_with_as_many_slow_ones() -> None:
    assert dealt("SLOW", "quickquickqu", 2) == list("SOquickqLWuickqu")
