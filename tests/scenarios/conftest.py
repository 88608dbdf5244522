"""Fixtures of the scenarios: a ledger, a crew of processes, and places for jobs."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines import Engines
from tests.scenarios.crew import Crew
from tests.scenarios.ledger import Ledger
from tests.scenarios.places import Places


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Where every process writes what it claimed and settled."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def places(engines: Engines) -> Iterator[Places]:
    """Databases that can be named to other processes."""
    with ExitStack() as stack:
        yield Places(engines, stack)


@pytest.fixture
def crew(tmp_path: Path, places: Places) -> Iterator[Crew]:
    """Processes that end with the test, before their database does."""
    with Crew.hire(tmp_path) as hired:
        yield hired
