"""What those who watch are told: each change that people can see makes the version grow."""

from dibs.job import JobState
from dibs.operations import jobs, watching, workers
from dibs.operations.rows import Seen
from dibs.payload import encode
from tests.actors import Actors


def look(actors: Actors, job_id: int) -> Seen:
    (seen,) = actors.engine.run(watching.look([job_id]))
    return seen


def test_every_change_makes_the_version_grow(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    seen = [look(actors, job_id)]

    def then(state: str) -> None:
        seen.append(look(actors, job_id))
        assert seen[-1].state == state
        assert seen[-1].version > seen[-2].version

    (job,) = worker.claim()
    then("RUNNING")
    actors.engine.run(jobs.progress(job.lease, encode({"done": 1})))
    then("RUNNING")
    assert seen[-1].progress == {"done": 1}
    worker.retry(job)
    then("RETRY")
    assert seen[-1].error == "boom"
    (job,) = worker.claim()
    then("RUNNING")
    actors.engine.run(workers.hand_back([worker.id], None, ()))
    then("RETRY")
    worker.claim()
    then("RUNNING")
    actors.recover(worker)
    then("RETRY")
    actors.engine.run(jobs.cancel([job_id]))
    then("CANCELLED")
    actors.engine.run(jobs.retry(job_id))
    then("PENDING")
    other = actors.worker()
    (job,) = other.claim()
    then("RUNNING")
    other.succeed(job)
    then("SUCCESSFUL")
    assert seen[-1].error is None
    assert seen[-1].version == actors.get(job_id).version


def test_jobs_that_are_new(actors: Actors) -> None:
    assert actors.engine.run(watching.newest()) == 0
    first, second, third = actors.add(), actors.add(queue="other"), actors.add()
    worker = actors.worker()
    (job,) = worker.claim(1)
    worker.succeed(job)
    assert actors.state(first) is JobState.SUCCESSFUL
    assert actors.engine.run(watching.newest()) == third
    assert actors.engine.run(watching.newer(0, None, 10)) == {first, second, third}
    assert actors.engine.run(watching.newer(first, None, 10)) == {second, third}
    assert actors.engine.run(watching.newer(0, ["other"], 10)) == {second}
    assert actors.engine.run(watching.newer(0, None, 1)) == {first}
    assert actors.engine.run(watching.oldest(None, 1)) == {second}
    assert actors.engine.run(watching.oldest(["default"], 9)) == {third}
    assert actors.engine.run(watching.look([])) == []
