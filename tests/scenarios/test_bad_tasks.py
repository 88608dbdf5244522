"""Tasks that misbehave, in a real worker: they fail, or their process does; the others and the worker live on."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from dibs import JobState
from tests.apps import on_one
from tests.scenarios.teams import Team

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CODE = """
import subprocess, sys

class Odd(BaseException):
    pass

def misbehave(how):
    match how:
        case "exit":
            sys.exit(7)
        case "base":
            raise Odd("odd")
        case "stop":
            raise StopIteration("over")
        case "memory":
            bytearray(1 << 60)
        case "object":
            return object()
        case "fork":
            if os.fork() == 0:
                ledger(f"copy {os.getpid()}")
                return "copy"
            return "parent"
        case "children":
            subprocess.Popen(["sleep", "0.2"])
            return "spawned"

@app.task(max_attempts=1)
def in_thread(n: int, how: str) -> str:
    return misbehave(how)

@app.task(max_attempts=1)
async def in_loop(n: int, how: str) -> str:
    return misbehave(how)

@app.task(max_attempts=1)
async def in_task(n: int, how: str) -> str:
    async def misbehaves():
        return misbehave(how)

    return await asyncio.create_task(misbehaves())

@app.task(max_attempts=1)
async def waits_after_fork(n: int) -> str:
    if os.fork() == 0:
        ledger(f"copy {os.getpid()}")
    await asyncio.sleep(0.01)
    return "parent"

@app.task
async def leaves_later(n: int) -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 7)
    await asyncio.sleep(600)

@app.task(max_attempts=2)
def closes(n: int) -> None:
    ledger(f"closes {n}")
    os.closerange(3, 1024)
    time.sleep(600)

@app.task(process=True, max_attempts=1)
def closes_in_process(n: int) -> None:
    os.closerange(3, 1024)
    time.sleep(600)

GROWN = []

@app.task(max_attempts=1)
def grows(n: int) -> int:
    for _ in range(300):
        GROWN.append(bytearray(os.urandom(1 << 10) * (1 << 10)))
    return len(GROWN)

@app.task(process=True, max_attempts=1)
def grows_in_process(n: int) -> None:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    while True:
        GROWN.append(bytearray(16 << 20))

@app.task(process=True, max_attempts=1)
def grows_and_stays(n: int) -> int:
    GROWN.append(bytearray(os.urandom(1 << 10) * (300 << 10)))
    return os.getpid()

@app.task(process=True, max_attempts=1)
def leaves_children(n: int) -> list[int]:
    return [subprocess.Popen(["sleep", "600"]).pid for _ in range(3)]

@app.task(max_attempts=1)
def leaves_children_in_thread(n: int) -> list[int]:
    return [subprocess.Popen(["sleep", "600"]).pid for _ in range(3)]

@app.task
async def good(n: int) -> None:
    ledger(f"good {n} {os.getpid()}")
"""
ERRORS = {
    "exit": "SystemExit: 7",
    "base": "Odd: odd",
    "stop": "StopIteration",
    "memory": "MemoryError",
    "object": "InvalidPayload: The result cannot be written as JSON",
}
RESULTS = {"fork": "parent", "children": "spawned"}


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@on_one
def test_what_a_task_does_is_its_own_affair(tmp_path: Path, url: str) -> None:
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        member = team.start()
        (pid,) = member.children()
        tasks = {kind: team.app.task(name=f"shop.{kind}")(lambda n, how: None) for kind in ("in_thread", "in_loop")}
        jobs = {(kind, how): task.enqueue(n=1, how=how) for kind, task in tasks.items() for how in (*ERRORS, *RESULTS)}
        in_task = team.app.task(name="shop.in_task")(lambda n, how: None)
        jobs |= {("in_task", how): in_task.enqueue(n=1, how=how) for how in ERRORS}
        (forked,) = team.add("waits_after_fork", 1)
        ids = team.add("good", 20)
        for (kind, how), job in jobs.items():
            done = job.join(60)
            if how in RESULTS:
                assert (done.state, done.result) == (JobState.SUCCESSFUL, RESULTS[how]), kind
            else:
                assert done.state is JobState.FAILED, kind
                assert ERRORS[how] in str(done.error), kind
        assert team.app.join(forked, 60).result == "parent"
        assert {team.app.join(job_id, 60).state for job_id in ids} == {JobState.SUCCESSFUL}
        assert member.children() == [pid], member.said()
        copies = [line.split()[1] for line in team.ledger() if line.startswith("copy")]
        assert len(copies) == 3
        team.until(lambda: not any(map(is_alive, copies)), "the copies of the worker ended")


def test_a_task_that_closes_the_files_of_its_worker(tmp_path: Path, url: str) -> None:
    """On SQLite its locks go with them: this is for a mistake that happens once, and not to be relied on."""
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        team.start()
        (bad,) = team.add("closes", 1)
        team.until(lambda: "closes 0" in team.ledger(), "it closed them")
        ids = team.add("good", 50)
        team.until(lambda: Counter(line.split()[0] for line in team.ledger())["good"] >= 50, "the others ran")
        assert {team.app.join(job_id, 60).state for job_id in ids} == {JobState.SUCCESSFUL}
        assert team.app.join(bad, 60).state is JobState.FAILED


@on_one
def test_a_callback_that_ends_the_worker_is_a_crash_and_charged_for(tmp_path: Path, url: str) -> None:
    """Nobody can tell whose it is. So it is as if it had been killed: who ran then is tried alone."""
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        member = team.start()
        failed = team.app.join(team.add("leaves_later")[0], 60)
        assert (failed.state, failed.attempts) == (JobState.FAILED, 3)
        assert runs_others(team)
        assert "SystemExit" in member.said()


def runs_others(team: Team, count: int = 20) -> bool:
    """Whether what comes now is run."""
    ids = team.add("good", count)
    return {team.app.join(job_id, 60).state for job_id in ids} == {JobState.SUCCESSFUL}


def test_a_process_whose_task_closes_its_files_fails_alone(tmp_path: Path, url: str) -> None:
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        member = team.start()
        (pid,) = member.children()
        failed = team.app.join(team.add("closes_in_process")[0], 60)
        assert failed.state is JobState.FAILED
        assert "ProcessDied" in str(failed.error)
        assert runs_others(team)
        assert member.children() == [pid], member.said()


@on_one
def test_a_worker_whose_task_has_eaten_much_memory_is_replaced(tmp_path: Path, url: str) -> None:
    """By 300 MB, of which it may have 200; what it ran counts."""
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        member = team.start("--max-memory", "200")
        (pid,) = member.children()
        grown = team.app.join(team.add("grows")[0], 60)
        assert (grown.state, grown.result) == (JobState.SUCCESSFUL, 300)
        member.until("stops, to be replaced: it has grown to")
        assert runs_others(team)
        assert pid not in member.children()
        assert member.stop() == 0


@on_one
def test_a_process_whose_task_has_eaten_much_memory_is_ended_and_its_worker_stays(tmp_path: Path, url: str) -> None:
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        member = team.start("--max-memory", "200", "--concurrency", "1")
        (pid,) = member.children()
        ran = [team.app.join(job_id, 60).result for job_id in team.add("grows_and_stays", 2)]
        assert len(set(ran)) == 2
        team.until(lambda: not any(map(is_alive, map(str, ran))), "both ended")
        assert "has grown to" in member.said()
        assert member.children() == [pid], member.said()


@on_one
def test_a_process_whose_task_eats_all_the_memory_that_it_may_have_fails_alone(tmp_path: Path, url: str) -> None:
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        member = team.start()
        (pid,) = member.children()
        failed = team.app.join(team.add("grows_in_process")[0], 60)
        assert (failed.state, str(failed.error)[:11]) == (JobState.FAILED, "MemoryError")
        assert runs_others(team)
        assert member.children() == [pid], member.said()


@on_one
def test_what_a_task_leaves_behind_does_not_keep_its_worker(tmp_path: Path, url: str) -> None:
    """What a process of its own has started ends with it; what a thread has started is nobody's."""
    with Team.hire(tmp_path, url, CODE, lease=2.0, beat=0.3) as team:
        member = team.start()
        left = team.app.join(team.add("leaves_children")[0], 60).result
        others = team.app.join(team.add("leaves_children_in_thread")[0], 60).result
        try:
            assert all(map(is_alive, map(str, [*left, *others])))
            assert runs_others(team)
            assert member.stop() == 0
            team.until(lambda: not any(map(is_alive, map(str, left))), "those of the process ended")
        finally:
            for pid in others:
                os.kill(pid, signal.SIGKILL)
