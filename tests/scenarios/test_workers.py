"""Whole workers, real signals: nothing lost, nothing double, and a crash heals at once. A ledger is the judge."""

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dibs import JobState
from dibs.operations import claims, workers
from tests.actors import Actors
from tests.apps import on_one
from tests.scenarios.teams import PATIENCE, Member, Team, said_as_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

Hire = Callable[..., AbstractContextManager[Team]]

CODE = """
from dibs.errors import LeaseLost

@app.task
async def note(n: int) -> None:
    ledger(f"ran {n}")

@app.task
async def sign(n: int) -> None:
    ledger(f"{n} {os.getpid()}")

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

@app.task(max_attempts=5)
async def stays(n: int) -> None:
    ledger(f"began {n} {os.getpid()}")
    try:
        if current_job().attempt == 1:
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        ledger(f"stopped {n} {os.getpid()}")
        raise

@app.task(max_attempts=5)
def writes(n: int) -> None:
    wait_for_go(n)
    try:
        with current_job().transaction() as connection:
            connection.execute(f"insert into effects values ({os.getpid()})")
    except LeaseLost:
        ledger(f"refused {n} {os.getpid()}")
        raise

@app.task(max_attempts=3)
def kills(n: int) -> None:
    ledger(f"kills {n}")
    os.kill(os.getpid(), 9)

@app.task(max_attempts=100)
async def once(n: int) -> None:
    await asyncio.sleep(0.05)
    async with current_job().transaction() as connection:
        await connection.execute(f"insert into effects values ({n})")
        await asyncio.sleep(0.002)

def hook(job, connection):
    if not os.path.exists("tried"):
        open("tried", "w").close()
        raise OSError("away\\nfor now")

@app.task(retry=0.1, on_failure=hook)
def unlucky(n: int) -> None:
    raise ValueError("no")

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
    """Both are there before the jobs are, and both take a share."""
    count = 20_000
    with hire() as team:
        one, two = team.start("--log-level", "warning"), team.start("--log-level", "warning")
        team.add("sign", count)
        team.until(lambda: all_done(team), "all jobs ran", 120)
        signed = [line.split() for line in team.ledger()]
        shares = Counter(pid for _, pid in signed)
        assert shares.keys() == {str(pid) for member in (one, two) for pid in member.children()}
        assert (one.stop(), two.stop()) == (0, 0)
    assert Counter(n for n, _ in signed) == dict.fromkeys(map(str, range(count)), 1)
    assert min(shares.values()) >= count / 20


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


def test_nobody_is_idle_while_another_holds_what_has_not_begun(hire: Hire) -> None:
    """Also if it was told to hold so many, and beats are too seldom to tell."""
    with hire(lease=3600.0, beat=600.0, prefetch=100, concurrency=2) as team:
        first = team.start()
        ids = team.add("wait", 12)
        team.until(lambda: states(team, ids)["RUNNING"] == 12, "two run, ten wait in its hands")
        second = team.start()
        team.until(lambda: len(team.ledger()) == 4, "the other runs two")
        assert len({line.split()[2] for line in team.ledger()}) == 2
        (team.folder / "go").touch()
        team.until(lambda: all_done(team), "all ended")
        assert {team.app.get(job).attempts for job in ids} == {1}
        assert (first.stop(), second.stop()) == (0, 0)


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


QUIET = ("--log-level", "warning")


@dataclass
class Storm:
    """Four workers, of which one after another is killed: a child, or all of a worker as a container is killed."""

    team: Team
    actors: Actors
    members: list[Member] = field(default_factory=list)
    added: int = 0
    kills: int = 0
    hits: int = 0  # kills of one that owned a job

    @classmethod
    @contextmanager
    def over(cls, hire: Hire) -> Iterator["Storm"]:
        """It has not begun. When it is over nothing is lost, and effects under transaction() are there exactly once."""
        with hire(concurrency=4, prefetch=2) as team:
            actors = Actors(team.app.engine)
            actors.sql("create table effects (n integer)")
            storm = cls(team, actors)
            storm.members += [team.start(*QUIET) for _ in range(4)]
            yield storm
            team.until(lambda: all_done(team), "all are final", 120)
            effects = Counter(row[0] for row in actors.sql("select n from effects"))
            assert effects == dict.fromkeys(range(storm.added), 1)
            assert actors.sql("select count(*) from dibs.dead") == [(0,)]

    def keep_busy(self, step: int = 300) -> None:
        """There is always something to own."""
        if self.team.app.engine.run(claims.available(["default"], step)) < step:
            self.team.add("once", step, first=self.added, max_attempts=100)
            self.added += step

    def strike(self, another: Callable[..., Member]) -> None:
        """SIGKILL to one of them, more often than not to one that owns a job."""
        owning = owners(self.actors)
        own = [each for each in self.members if any(f"-{pid}-" in name for pid in each.children() for name in owning)]
        victim = random.choice(own if own and random.random() < 0.8 else self.members)
        self.kills += 1
        hit = False
        for pid in victim.children():
            with suppress(ProcessLookupError):  # it was killed the last time, and is reaped only now
                os.kill(pid, signal.SIGKILL)
                hit |= any(f"-{pid}-" in name for name in owning)
        self.hits += hit
        if random.random() < 0.5:
            victim.process.kill()
            self.members[self.members.index(victim)] = another(*QUIET)


@on_one
def test_workers_killed_every_moment_lose_nothing_and_do_nothing_twice(hire: Hire) -> None:
    with Storm.over(hire) as storm:
        deadline = time.monotonic() + 120
        while storm.hits < 20:
            assert time.monotonic() < deadline, f"only {storm.hits} kills hit an owner"
            storm.keep_busy()
            time.sleep(random.uniform(0.01, 0.2))
            storm.strike(storm.team.start)


@pytest.mark.long
def test_workers_killed_every_second_for_half_a_minute_lose_nothing_and_do_nothing_twice(hire: Hire) -> None:
    with Storm.over(hire) as storm:
        began = time.monotonic()
        for second in range(1, 31):
            while (left := began + second - time.monotonic()) > 0:
                storm.keep_busy()
                time.sleep(min(0.1, left))
            storm.strike(storm.team.begin)
        assert (storm.kills, storm.hits >= 20) == (30, True), f"only {storm.hits} kills hit an owner"


def test_a_stopped_worker_is_refused_and_goes_on(hire: Hire) -> None:
    """SIGSTOP past its lease: others run its jobs. When it goes on it stops one that would never end, the result of one
    that nobody can stop is refused with its effects, and it works as before."""
    with hire() as team:
        actors = Actors(team.app.engine)
        actors.sql("create table effects (n integer)")
        stopped = team.start()
        endless, late = team.add("stays")[0], team.add("writes")[0]
        team.until(lambda: len(team.ledger()) == 2, "both began")
        (child,) = stopped.children()
        os.kill(child, signal.SIGSTOP)
        try:
            other = team.start()
            (heir,) = other.children()
            (team.folder / "go").touch()
            team.until(lambda: all_done(team), "the other ended them")
        finally:
            os.kill(child, signal.SIGCONT)
        team.until(lambda: len(team.ledger()) == 6, "it has let go of both")
        assert sorted(team.ledger()[4:]) == [f"refused 0 {child}", f"stopped 0 {child}"]
        assert actors.sql("select n from effects") == [(heir,)]
        for job in (endless, late):
            stopped.until(f"Job {job} was taken over or cancelled: what it came to here was refused")
            assert (team.app.get(job).state, team.app.get(job).attempts) == (JobState.SUCCESSFUL, 2)
        stopped.until("was thought dead; it goes on under a new number")
        assert other.stop() == 0
        ids = team.add("note", 5)
        team.until(lambda: states(team, ids)["SUCCESSFUL"] == 5, "it works as before")
        assert stopped.children() == [child]
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
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_hook_that_raises_is_one_line_too(hire: Hire, form: str) -> None:
    """In JSON with the traceback as one field; for people with what was raised, and where."""
    with hire() as team:
        worker = team.start("--log-format", form)
        (job,) = team.add("unlucky", max_attempts=1)
        team.until(lambda: states(team, [job])["FAILED"] == 1, "its hook went through")
        assert worker.stop() == 0
        said = worker.said()
    event = f"The on_failure hook of job {job} raised, and is tried again"
    if form == "json":
        (line,) = [each for each in said_as_json(said) if each["message"] == event]
        assert line["error"].startswith("Traceback")
        assert line["error"].endswith("OSError: away\nfor now")
    else:
        start = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (INFO|WARNING|ERROR) ")
        assert all(start.match(line) for line in said.splitlines())
        assert re.search(rf"WARNING {event}: OSError: away \| for now \(.*shop.py, line \d+\)\n", said)


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
