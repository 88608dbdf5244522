"""A worker lives through the loss of its database, and through a clock that is wrong."""

import time
from collections import Counter
from pathlib import Path

import pytest

from dibs import Dibs, JobState
from tests.actors import Actors
from tests.apps import on_postgres
from tests.faketime import FAKETIME, find_faketime
from tests.scenarios.teams import PATIENCE, Team
from tests.servers.fixtures import OwnServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CODE = """
@app.task
async def nap(n: int) -> None:
    ledger(f"began {n} {os.getpid()}")
    await asyncio.sleep(0.2)
    ledger(f"ended {n} {os.getpid()}")
"""
JOBS = 60


def ends(team: Team) -> list[str]:
    return [line for line in team.ledger() if line.startswith("ended")]


# Twice the lease in `make test`; a minute, with the lease and the beat of every day, in CI.
@pytest.mark.parametrize(
    "seconds, settings",
    [(4.0, {"lease": 2.0, "beat": 0.3}), pytest.param(60.0, {}, marks=pytest.mark.long)],
    ids=["short", "a minute"],
)
def test_the_same_worker_goes_on_when_the_database_is_back(
    tmp_path: Path, own_postgres: OwnServer, seconds: float, settings: dict[str, float]
) -> None:
    server = own_postgres("postgres18")
    url = server.url()
    app = Dibs(url)
    app.migrate()
    app.close()
    with Team.hire(tmp_path, url, CODE, **settings) as team:
        team.add("nap", JOBS)
        members = [team.start("--concurrency", "3") for _ in range(2)]
        for member in members:
            member.until("Worker started")  # with all its rows; one that is just beginning would give up
        team.until(lambda: len(ends(team)) >= 12, "some jobs ended")
        before = sorted(pid for member in members for pid in member.children())
        server.stop("immediate")
        time.sleep(seconds)  # that is how long it is away
        server.start()
        team.until(lambda: len(ends(team)) >= JOBS, "all jobs ended", seconds + PATIENCE)
        actors = Actors(team.app.engine)
        team.until(lambda: actors.sql("select count(*) from dibs.jobs") == [(0,)], "all jobs settled")
        assert sorted(pid for member in members for pid in member.children()) == before, team.logs()
        assert actors.sql("select state, crashes, count(*) from dibs.history group by 1, 2") == [
            (JobState.SUCCESSFUL.code, 0, JOBS)
        ]


@pytest.mark.system("faketime")
@on_postgres
@pytest.mark.parametrize("offset", ["+3600s", "-3600s"])
def test_a_worker_whose_clock_is_an_hour_off_neither_loses_nor_steals_a_job(
    tmp_path: Path, url: str, offset: str
) -> None:
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        team.start("--concurrency", "3")
        wrong = {"LD_PRELOAD": str(find_faketime()), FAKETIME: offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        member = team.start("--concurrency", "3", **wrong)
        ids = team.add("nap", JOBS)
        team.until(lambda: len(ends(team)) >= JOBS, "all jobs ended")
        late = team.app.get(team.add("nap", 1, first=JOBS, delay=1.0)[0])
        team.until(lambda: team.app.get(late.id).state.final, "a job that is due later ended")
        done = [team.app.get(job_id) for job_id in ids]
        assert Counter((job.state, job.attempts) for job in done) == {(JobState.SUCCESSFUL, 1): JOBS}
        assert len(ends(team)) == JOBS + 1
        assert {str(pid) for pid in member.children()} & {line.split()[2] for line in ends(team)}, "it had no share"
        started = team.app.get(late.id).started_at
        assert started is not None
        assert late.run_at is not None
        assert started >= late.run_at
