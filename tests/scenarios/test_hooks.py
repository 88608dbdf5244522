"""What is due when a job fails for good happens once, wherever on the way its process is killed."""

import signal
import subprocess
import sys

import pytest

from dibs import JobState
from dibs.operations import workers
from tests.actors import Actors
from tests.scenarios.hooked import KINDS, POINTS, app_for


def test_the_points_are_these() -> None:
    assert len(POINTS) == 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS)
def test_the_hook_takes_effect_once(url: str, kind: str, point: str) -> None:
    app = app_for(url, kind)
    actors = Actors(app.engine)
    actors.sql("create table refunds (job bigint)")
    job_id = actors.add("costly", {}, max_attempts=1)
    killed = subprocess.run([sys.executable, "-m", "tests.scenarios.hooked", url, kind, point], timeout=60)
    assert killed.returncode == -signal.SIGKILL  # else the point was not passed
    dead = [row.id for row in app.engine.run(workers.list_workers())]
    app.engine.run(workers.recover(known=dead))
    actors.sql("update dibs.jobs set run_at = created_at")  # it would wait for some seconds
    app.drain()
    job = app.get(job_id)
    refunds = actors.sql("select job from refunds")
    app.close()
    assert (job.state, refunds) == (JobState.FAILED, [(job_id,)])
