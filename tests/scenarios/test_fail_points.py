"""Killed at each named point of a submission: what it comes to. The table in the guide is what this test finds."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dibs import JobState
from dibs.operations import workers
from tests.actors import Actors
from tests.apps import on_one
from tests.scenarios.payer import MODES, POINTS, accepted, app_for

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "providers.md"
WORDS = {(JobState.SUCCESSFUL, 1): "accepted once", (JobState.SUCCESSFUL, 2): "**accepted twice**"}
WORDS |= {(JobState.FAILED, count): "FAILED, for a person" for count in (0, 1)}


def test_the_points_are_these() -> None:
    assert len(POINTS) == 7


def test_the_guide_has_a_table_of_them() -> None:
    assert table_of(GUIDE.read_text()).keys() == set(POINTS)


@on_one
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", POINTS)
def test_it_comes_to_what_the_guide_says(url: str, mode: str, point: str, tmp_path: Path) -> None:
    app, pay = app_for(url, mode, tmp_path)
    actors = Actors(app.engine)
    sent = pay.enqueue()
    program = [sys.executable, "-m", "tests.scenarios.payer", url, mode, point, str(tmp_path)]
    killed = subprocess.run(program, timeout=60)
    assert killed.returncode == -signal.SIGKILL  # else the point was not passed
    dead = [row.id for row in app.engine.run(workers.list_workers())]
    app.engine.run(workers.recover(known=dead))
    actors.make_due()
    app.drain()
    job = sent.refresh()
    app.close()
    found = WORDS[job.state, len(accepted(tmp_path))]
    assert found == table_of(GUIDE.read_text())[point][MODES.index(mode)]
    if job.state is JobState.SUCCESSFUL:
        assert job.usage == 1


def table_of(text: str) -> dict[str, list[str]]:
    """The rows of the table that begins with `killed when`."""
    _, _, after = text.partition("| killed when |")
    rows = [line.strip("|").split("|") for line in after.splitlines()[2:]]
    found: dict[str, list[str]] = {}
    for name, *cells in rows:
        if not cells:
            break
        found[name.strip()] = [cell.strip() for cell in cells]
    return found
