"""One clock: the database's. A worker or a producer whose own clock is wrong neither loses nor steals anything."""

import time

import pytest

from dibs.job import JobState
from dibs.operations import workers
from tests.actors import Actors


@pytest.fixture(params=[-3600.0, 3600.0], ids=["an hour behind", "an hour ahead"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's wall clock is an hour off; the database's is not."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + request.param)


@pytest.mark.usefixtures("wrong_clock")
def test_a_job_is_due_by_the_databases_clock(actors: Actors) -> None:
    now, later = actors.add(), actors.add(delay=60)
    assert [job.id for job in actors.worker().claim(10)] == [now]
    assert actors.state(later) is JobState.PENDING


@pytest.mark.usefixtures("wrong_clock")
def test_a_worker_lives_by_the_databases_clock(actors: Actors) -> None:
    wrong, judge = actors.worker(), actors.worker()
    actors.add()
    (job,) = wrong.claim()
    wrong.beat(job.lease)
    actors.trust(judge)
    judge.beat()
    assert actors.engine.run(workers.recover(judge=judge.id)).jobs == {}
    assert not wrong.succeed(job).lost
