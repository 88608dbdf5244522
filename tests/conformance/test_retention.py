"""Retention: what is past its time goes, and nobody has to wait for it."""

from datetime import UTC, datetime, timedelta

import pytest

from dibs.errors import JobNotFound
from dibs.job import JobId, JobState, NewJob
from dibs.lifecycle import Done
from dibs.operations import claims, jobs, retention, workers
from dibs.operations.claims import Settle
from dibs.operations.operation import Conversation, Statement, operation
from tests.actors import Actors
from tests.conformance.elsewhere import elsewhere
from tests.conformance.kinds import on_servers

DAY = 86_400


@operation()
def make_partition(day: int) -> Conversation[str]:
    """Make the partition of one day from today."""
    rows = yield Statement("make_partition", day=day)
    return str(rows[0][0])


def finish(actors: Actors, days: int) -> JobId:
    """A successful job that is kept for so many days (negative: it expired so long ago)."""
    job_id = actors.add()
    (job,) = actors.worker().claim()
    actors.engine.run(claims.settle([Settle(job.lease, Done(JobState.SUCCESSFUL), days)]))
    return job_id


def partition(actors: Actors, job_id: int) -> str:
    ((name,),) = actors.sql(
        f"select c.relname from dibs.history h join pg_class c on c.oid = h.tableoid where id = {job_id}"
    )
    return str(name)


def partition_of(day: int) -> str:
    return f"history_{datetime.now(UTC) + timedelta(days=day):%Y%m%d}"


def shift(actors: Actors, column: str, table: str, days: int) -> None:
    by = f"interval '{days} days'" if actors.engine.can.cursor else f"{days * DAY * 1_000_000}"
    actors.sql(f"update dibs.{table} set {column} = {column} - {by}")


# Finished jobs


def test_a_settle_never_fails_for_want_of_a_place(actors: Actors) -> None:
    for days in (0, 1, retention.AHEAD, retention.AHEAD + 1, 400, 3650):
        assert actors.state(finish(actors, days)) is JobState.SUCCESSFUL


def test_expired_jobs_are_forgotten(actors: Actors) -> None:
    expired, kept = finish(actors, -2), finish(actors, 400)
    assert actors.engine.run(retention.expired_history()) == [expired]
    assert actors.engine.run(retention.forget_history([expired])) == 1
    assert actors.engine.run(retention.expired_history()) == []
    with pytest.raises(JobNotFound):
        actors.get(expired)
    assert actors.state(kept) is JobState.SUCCESSFUL


def test_what_is_forgotten_already_is_not_counted(actors: Actors) -> None:
    expired = finish(actors, -2)
    assert actors.engine.run(retention.forget_history([expired, 12345])) == 1
    assert actors.engine.run(retention.forget_history([expired])) == 0
    assert actors.engine.run(retention.forget_dead([expired])) == 0


def test_expired_jobs_go_a_step_at_a_time(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP", 2)
    for _ in range(3):
        finish(actors, -2)
    steps = []
    while ids := actors.engine.run(retention.expired_history()):
        steps.append(actors.engine.run(retention.forget_history(ids)))
    assert steps == [2, 1]


# Failed and cancelled jobs


def test_failed_and_cancelled_jobs_are_kept_for_a_time(actors: Actors) -> None:
    failed, cancelled = actors.add_many(2)
    worker = actors.worker()
    worker.fail(*worker.claim())
    actors.engine.run(jobs.cancel([cancelled]))
    shift(actors, "finished_at", "dead", 89)
    assert actors.engine.run(retention.expired_dead()) == []
    shift(actors, "finished_at", "dead", 2)
    assert actors.engine.run(retention.expired_dead(days=100)) == []
    assert actors.engine.run(retention.expired_dead()) == [failed, cancelled]
    assert actors.engine.run(retention.forget_dead([failed, cancelled])) == 2
    with pytest.raises(JobNotFound):
        actors.get(failed)


# Names of workers


def test_names_of_workers_long_gone_are_forgotten(actors: Actors) -> None:
    gone, here = actors.worker(), actors.worker()
    actors.engine.run(workers.leave([gone.id]))
    actors.engine.run(retention.lapsed())
    assert len(actors.sql("select id from dibs.worker_names")) == 2
    shift(actors, "seen_at", "worker_names", retention.NAME_DAYS + 1)
    actors.engine.run(retention.lapsed())
    assert actors.sql("select id from dibs.worker_names") == [(here.id,)]


def test_a_job_outlives_the_name_of_its_worker(actors: Actors) -> None:
    job_id = finish(actors, 400)
    actors.sql("delete from dibs.worker_names")
    assert (actors.state(job_id), actors.get(job_id).worker) == (JobState.SUCCESSFUL, None)


# Partitions


def test_retention_can_run_at_any_time(actors: Actors) -> None:
    kept = finish(actors, 7)
    assert actors.engine.run(retention.partitions())
    assert actors.engine.run(retention.partitions())
    assert actors.state(kept) is JobState.SUCCESSFUL


@on_servers
def test_partitions_are_made_ahead(actors: Actors) -> None:
    ahead = retention.AHEAD + 2
    assert partition(actors, finish(actors, ahead)) == "history_rest"
    actors.engine.run(retention.partitions(ahead + 1))
    assert partition(actors, finish(actors, ahead + 1)) == partition_of(ahead + 1)
    assert partition(actors, finish(actors, 0)) == partition_of(0)


@on_servers
def test_a_day_whose_rows_lie_in_the_rest_stays_there(actors: Actors) -> None:
    ahead = retention.AHEAD + 2
    early = finish(actors, ahead)
    assert actors.engine.run(retention.partitions(ahead))
    assert partition(actors, finish(actors, ahead)) == "history_rest"
    assert actors.state(early) is JobState.SUCCESSFUL


@on_servers
def test_a_past_partition_is_dropped_with_its_jobs(actors: Actors) -> None:
    assert actors.engine.run(make_partition(-1)) == "made"
    assert actors.engine.run(make_partition(-3)) == "made"
    expired, today = finish(actors, -3), finish(actors, 0)
    assert partition(actors, expired) == partition_of(-3)
    assert actors.engine.run(retention.partitions())
    with pytest.raises(JobNotFound):
        actors.get(expired)
    assert actors.state(today) is JobState.SUCCESSFUL
    assert actors.engine.run(make_partition(-1)) == "made"  # it had gone too


@on_servers
def test_dropping_behind_a_dump_gives_up_and_lets_settles_through(actors: Actors) -> None:
    actors.engine.run(make_partition(-1))
    with elsewhere(actors.engine) as dump:
        dump.sql("lock table dibs.history in access share mode")
        assert actors.engine.run(retention.partitions()) is False
        assert actors.state(finish(actors, 7)) is JobState.SUCCESSFUL
    assert actors.engine.run(retention.partitions())


@on_servers
def test_making_behind_a_dump_gives_up_and_lets_settles_through(actors: Actors) -> None:
    with elsewhere(actors.engine) as dump:
        dump.sql("lock table dibs.history_rest in access share mode")
        assert actors.engine.run(retention.partitions(retention.AHEAD + 1)) is False
        assert actors.state(finish(actors, retention.AHEAD + 1)) is JobState.SUCCESSFUL


def test_the_keys_of_requests_go_after_a_day(actors: Actors) -> None:
    for key in ("old", "new"):
        actors.engine.run(jobs.add_once(key, "said", NewJob("task")))
    day = "interval '25 hours'" if actors.engine.name == "postgres" else f"{25 * 3600 * 1_000_000}"
    actors.sql(f"update dibs.requests set at = at - {day} where key = 'old'")
    assert actors.engine.run(retention.old_ones()) is False
    assert actors.sql("select key from dibs.requests") == [("new",)]
