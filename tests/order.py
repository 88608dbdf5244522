"""In which order tests run, a pytest plugin: where several processes share them, each begins with the slow ones.

A process takes its part of the list from the beginning, and of what the others have left it steals from the end. So the
quick ones come last, and all processes end at about the same time.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")


@pytest.hookimpl(wrapper=True)  # when others have chosen which tests run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Every process finds the same order, which pytest-xdist wants."""
    yield
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        slow = [item for item in items if item.get_closest_marker("slow")]
        quick = [item for item in items if not item.get_closest_marker("slow")]
        items[:] = dealt(slow, quick, processes)


def dealt(slow: Sequence[T], quick: Sequence[T], processes: int) -> list[T]:
    """As many parts of one length, each with as many slow tests, at its beginning."""
    parts, count = list[T](), len(slow) + len(quick)
    for n in range(processes):
        parts += slow[n::processes]
        room = max(0, count * (n + 1) // processes - len(parts))
        parts += quick[:room]
        quick = quick[room:]
    return parts
