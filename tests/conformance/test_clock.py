"""One clock: the database's. A worker or a producer whose own clock is wrong neither loses nor steals anything."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from dibs.job import JobState
from dibs.operations import workers
from tests.actors import Actors

WrongClock = Callable[[], AbstractContextManager[None]]


@pytest.fixture(params=[-3600.0, 3600.0], ids=["an hour behind", "an hour ahead"])
def wrong_clock(request: pytest.FixtureRequest) -> WrongClock:
    """For a while this process's wall clock is an hour off; the database's is not."""

    @contextmanager
    def wrong() -> Iterator[None]:
        right = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: right() + request.param)
            yield

    return wrong


def test_a_job_is_due_by_the_databases_clock(actors: Actors, wrong_clock: WrongClock) -> None:
    with wrong_clock():
        now, later = actors.add(), actors.add(delay=60)
        assert [job.id for job in actors.worker().claim(10)] == [now]
    assert actors.state(later) is JobState.PENDING


def test_a_worker_lives_by_the_databases_clock(actors: Actors, wrong_clock: WrongClock) -> None:
    actors.add()
    with wrong_clock():
        wrong = actors.worker()
        (job,) = wrong.claim()
        wrong.beat(job.lease)
    judge = actors.worker()
    actors.trust(judge)
    judge.beat()
    assert actors.engine.run(workers.recover(judge=judge.id)).jobs == {}
    assert not wrong.succeed(job).lost


def test_a_judge_goes_by_the_databases_clock(actors: Actors, wrong_clock: WrongClock) -> None:
    dead = actors.worker()
    actors.add()
    (job,) = dead.claim()
    with wrong_clock():
        judge = actors.worker()
        actors.trust(judge)
        judge.beat()
        assert actors.engine.run(workers.recover(judge=judge.id)).jobs == {}
        actors.age(dead, 60)
        assert [*actors.engine.run(workers.recover(judge=judge.id)).jobs] == [job.id]
