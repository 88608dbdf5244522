"""Whole workers, real signals: nothing lost, nothing double, and a crash heals at once. A ledger is the judge."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from dibs import JobState
from dibs.operations import claims, workers
from tests.actors import Actors
from tests.apps import on_one
from tests.scenarios.teams import PATIENCE, Team, said_as_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

Hire = Callable[..., AbstractContextManager[Team]]

CODE = """
@app.task
async def note(n: int) -> None:
    ledger(f"ran {n}")

@app.task(max_attempts=50)
async def nap(n: int) -> None:
    ledger(f"began {n} {os.getpid()}")
    await asyncio.sleep(0.3)
    ledger(f"ended {n}")

@app.task(max_attempts=50)
async def wait(n: int) -> None:
    ledger(f"began {n} {os.getpid()}")
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    ledger(f"ended {n}")

def wait_for_go(n: int) -> None:
    ledger(f"began {n} {os.getpid()}")
    while not os.path.exists("go"):
        time.sleep(0.01)

@app.task
def wait_in_thread(n: int) -> None:
    wait_for_go(n)

@app.task(process=True)
def wait_in_process(n: int) -> None:
    wait_for_go(n)

@app.task(max_attempts=3)
def kills(n: int) -> None:
    ledger(f"kills {n}")
    os.kill(os.getpid(), 9)

@app.task(max_attempts=100)
async def once(n: int) -> None:
    async with current_job().transaction() as connection:
        await connection.execute(f"insert into effects values ({n})")
        await asyncio.sleep(0.002)

@app.task
def blocks(n: int) -> None:
    time.sleep(0.01)
"""


@pytest.fixture
def hire(tmp_path: Path, url: str) -> Hire:
    def hire(**settings: Any) -> AbstractContextManager[Team]:
        return Team.hire(tmp_path, url, CODE, **{"lease": 2.0, "beat": 0.3, **settings})

    return hire


def states(team: Team, ids: list[int]) -> Counter[str]:
    return Counter(team.app.get(job_id).state.value for job_id in ids)


def all_done(team: Team) -> bool:
    return Actors(team.app.engine).sql("select count(*) from dibs.jobs") == [(0,)]


def test_two_workers_run_every_job_once(hire: Hire) -> None:
    count = 20_000
    with hire() as team:
        team.add("note", count)
        one, two = team.start("--log-level", "warning"), team.start("--log-level", "warning")
        team.until(lambda: all_done(team), "all jobs ran", 120)
        assert (one.stop(), two.stop()) == (0, 0)
        ran = Counter(team.ledger())
    assert len(ran) == count
    assert set(ran.values()) == {1}


def test_the_jobs_of_a_killed_child_run_again_without_waiting_for_its_lease(hire: Hire) -> None:
    """Its supervisor knows that it is dead; by the lease it would be an hour."""
    with hire(lease=3600.0, beat=3.0) as team:
        worker = team.start()
        team.add("wait")
        team.until(lambda: len(team.ledger()) == 1, "it began")
        dead = worker.kill_child()
        team.until(lambda: len(team.ledger()) == 2, "it began again")
        assert team.ledger()[1].split()[2] != str(dead)
        (team.folder / "go").touch()
        team.until(lambda: all_done(team), "it ended")
        assert worker.stop() == 0
        assert "was killed by SIGKILL; another is started" in worker.said()
        assert "Freed 1 jobs" in worker.said()


@pytest.mark.parametrize("task", ["wait", "wait_in_thread", "wait_in_process"])
def test_a_child_whose_supervisor_is_gone_stops(hire: Hire, task: str) -> None:
    """What has not begun goes back at once; what runs does not get the grace time, which is an hour here."""
    with hire(lease=3600.0, beat=3.0, grace=3600.0, prefetch=5, concurrency=2) as team:
        orphan = team.start()
        ids = team.add(task, 7)
        team.until(lambda: len(team.ledger()) == 2, "two began")
        team.until(lambda: states(team, ids)["RUNNING"] == 7, "five wait in its hands")
        (child,) = orphan.children()
        orphan.process.kill()
        orphan.process.wait()
        team.until(lambda: states(team, ids)["PENDING"] == 7, "all are back")
        team.until(lambda: not Path(f"/proc/{child}").exists() or "Z" in _status(child), "the child ended")
        assert {team.app.get(job_id).attempts for job_id in ids} == {0}
        assert team.app.engine.run(workers.list_workers()) == []
        assert "The supervisor is gone" in orphan.said()


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2]
    except OSError:
        return "Z"


def test_sigterm_is_polite(hire: Hire) -> None:
    """100 running and 100 in its hands: the first finish, the others run elsewhere at once, attempts unchanged."""
    with hire(prefetch=100, concurrency=100) as team:
        first = team.start()
        ids = team.add("wait", 200)
        team.until(lambda: len(team.ledger()) == 100, "a hundred began")
        team.until(lambda: states(team, ids)["RUNNING"] == 200, "a hundred wait in its hands")
        first.children()
        first.signal(signal.SIGTERM)
        team.until(lambda: states(team, ids)["PENDING"] == 100, "those that had not begun are back")
        assert {team.app.get(job).attempts for job in ids if team.app.get(job).state == "PENDING"} == {0}
        team.start()
        team.until(lambda: len(team.ledger()) == 200, "they run elsewhere")
        (team.folder / "go").touch()
        assert first.process.wait(PATIENCE) == 0
        team.until(lambda: all_done(team), "all ended")
        assert {team.app.get(job).attempts for job in ids} == {1}
        assert Counter(line.split()[0] for line in team.ledger()) == {"began": 200, "ended": 200}


def test_a_second_signal_stops_now(hire: Hire) -> None:
    """Also if its child has not heard of the first by then."""
    with hire(grace=3600.0) as team:
        worker = team.start()
        (job,) = team.add("wait")
        team.until(lambda: len(team.ledger()) == 1, "it began")
        (child,) = worker.children()
        os.kill(child, signal.SIGSTOP)
        worker.signal(signal.SIGTERM)
        worker.until("Stopping")
        worker.signal(signal.SIGTERM)
        os.kill(child, signal.SIGCONT)
        assert worker.process.wait(PATIENCE) == 0
        assert (team.app.get(job).state, team.app.get(job).attempts) == (JobState.PENDING, 0)


@on_one
def test_a_signal_to_supervisor_and_child_is_one(hire: Hire) -> None:
    """As systemd sends it, to all processes of a service: what runs may finish."""
    with hire(grace=3600.0, prefetch=1, concurrency=1) as team:
        worker = team.start()
        ids = team.add("wait", 2)
        team.until(lambda: states(team, ids)["RUNNING"] == 2, "one runs, one waits in its hands")
        (child,) = worker.children()
        worker.signal(signal.SIGTERM)
        team.until(lambda: states(team, ids)["PENDING"] == 1, "what had not begun is back")
        os.kill(child, signal.SIGTERM)
        (team.folder / "go").touch()
        assert worker.process.wait(PATIENCE) == 0
        assert states(team, ids) == {"SUCCESSFUL": 1, "PENDING": 1}


def test_a_job_that_kills_its_process_fails_alone(hire: Hire) -> None:
    """Of those that were in the same hands, all succeed, and none is charged more than once for its crashes."""
    with hire(prefetch=200, concurrency=4) as team:
        innocent = team.add("blocks", 100)
        (guilty,) = team.add("kills")
        innocent += team.add("blocks", 99)
        worker = team.start()
        team.until(lambda: all_done(team), "all are final", 120)
        assert worker.stop() == 0
        found = [team.app.get(job) for job in innocent]
        assert {job.state for job in found} == {JobState.SUCCESSFUL}
        assert max(job.attempts for job in found) <= 2
        assert (team.app.get(guilty).state, team.app.get(guilty).attempts) == (JobState.FAILED, 3)
        assert team.ledger() == ["kills 0"] * 3


def owners(actors: Actors) -> set[str]:
    """The names of those that own a job at this moment."""
    who = "select distinct w.name from dibs.jobs j join dibs.workers w on w.id = j.worker >> 20 where j.held"
    return {row[0] for row in actors.sql(who)}


@on_one
def test_workers_killed_every_moment_lose_nothing_and_do_nothing_twice(hire: Hire) -> None:
    """A child, or all of a worker as a container is killed. Effects under transaction() are there exactly once, and at
    least 20 of the kills hit an owner."""
    with hire(concurrency=4, prefetch=2) as team:
        actors = Actors(team.app.engine)
        actors.sql("create table effects (n integer)")
        count, step = 0, 300
        members = [team.start("--log-level", "warning") for _ in range(3)]
        hits, deadline = 0, time.monotonic() + 120
        while hits < 20:
            assert time.monotonic() < deadline, f"only {hits} kills hit an owner"
            if team.app.engine.run(claims.available(["default"], step)) < step:  # there is always something to own
                team.add("once", step, first=count, max_attempts=100)
                count += step
            time.sleep(random.uniform(0.01, 0.2))
            owning = owners(actors)
            own = [each for each in members if any(f"-{pid}-" in name for pid in each.children() for name in owning)]
            victim = random.choice(own if own and random.random() < 0.8 else members)
            for pid in victim.children():
                with suppress(ProcessLookupError):  # it was killed the last time, and is reaped only now
                    os.kill(pid, signal.SIGKILL)
                    hits += any(f"-{pid}-" in name for name in owning)
            if random.random() < 0.5:
                victim.process.kill()
                members[members.index(victim)] = team.start("--log-level", "warning")
        team.until(lambda: all_done(team), "all are final", 120)
        effects = Counter(row[0] for row in actors.sql("select n from effects"))
        assert len(effects) == count
        assert set(effects.values()) == {1}
        assert actors.sql("select count(*) from dibs.dead") == [(0,)]


def test_a_stopped_worker_is_refused_and_goes_on(hire: Hire) -> None:
    """SIGSTOP past its lease: others run its job; when it goes on its result is refused, and it works as before."""
    with hire() as team:
        stopped = team.start()
        (job,) = team.add("wait")
        team.until(lambda: len(team.ledger()) == 1, "it began")
        (child,) = stopped.children()
        os.kill(child, signal.SIGSTOP)
        try:
            team.start()
            team.until(lambda: len(team.ledger()) == 2, "another began it")
            (team.folder / "go").touch()
            team.until(lambda: all_done(team), "the other ended it")
        finally:
            os.kill(child, signal.SIGCONT)
        stopped.until("was thought dead; it goes on under a new number")
        assert team.app.get(job).attempts == 2
        team.members[1].stop()
        team.add("note", 5)
        team.until(lambda: all_done(team), "it works as before")
        assert stopped.stop() == 0


@on_one
def test_a_job_that_blocks_the_loop_for_three_leases_keeps_its_lease(tmp_path: Path, url: str) -> None:
    code = """
@app.task
async def blocks(n: int) -> None:
    ledger("began")
    time.sleep(3.0)
    ledger("ended")
"""
    with Team.hire(tmp_path, url, code, lease=1.0, beat=0.2) as team:
        team.add("blocks")
        first, second = team.start("--concurrency", "1"), team.start("--concurrency", "1")
        team.until(lambda: all_done(team), "it ended")
        assert team.ledger() == ["began", "ended"]
        assert (first.stop(), second.stop()) == (0, 0)


@on_one
def test_a_worker_is_replaced_after_so_many_jobs(hire: Hire) -> None:
    with hire() as team:
        team.add("nap", 30)
        worker = team.start("--max-jobs", "10", "--concurrency", "5")
        team.until(lambda: all_done(team), "all ran")
        assert len({line.split()[2] for line in team.ledger() if line.startswith("began")}) >= 3
        assert "stops, to be replaced: it has run 10 jobs" in worker.said()
        assert worker.stop() == 0


@on_one
def test_a_worker_that_has_grown_is_replaced(hire: Hire) -> None:
    with hire() as team:
        worker = team.start("--max-memory", "5")
        worker.until("stops, to be replaced: it has grown to")
        assert worker.stop() == 0


@on_one
def test_the_log_is_one_line_for_each_event(hire: Hire) -> None:
    with hire() as team:
        worker = team.start("--log-format", "json")
        (job,) = team.add("note")
        team.until(lambda: all_done(team), "it ran")
        assert worker.stop() == 0
        said = said_as_json(worker.said())
    messages = [line["message"] for line in said]
    name = messages[0].removeprefix("Worker started: ")
    assert f"Job {job} claimed by {name}" in messages
    assert f"Job {job} completed in 0.0s" in messages
    assert messages[-1] == f"Worker stopped: {name}"
    assert all(set(line) == {"time", "level", "message"} for line in said)


@on_one
def test_several_processes(hire: Hire) -> None:
    with hire() as team:
        worker = team.start("--processes", "3", "--concurrency", "1")
        team.until(lambda: worker.said().count("Worker started") == 3, "three began")
        team.add("nap", 12)
        team.until(lambda: all_done(team), "all ran")
        assert len({line.split()[2] for line in team.ledger() if line.startswith("began")}) == 3
        assert worker.stop() == 0


@on_one
def test_two_replicas_run_two_jobs_at_once(hire: Hire) -> None:
    """Each runs one at a time: what one leaves waiting, the other takes."""
    with hire(concurrency=1) as team:
        one, two = team.start(), team.start()
        ids = team.add("wait", 4)
        team.until(lambda: len(team.ledger()) == 2, "two began")
        assert len({line.split()[2] for line in team.ledger()}) == 2
        assert states(team, ids) == {"RUNNING": 2, "PENDING": 2}
        (team.folder / "go").touch()
        team.until(lambda: all_done(team), "all ended")
        assert (one.stop(), two.stop()) == (0, 0)
