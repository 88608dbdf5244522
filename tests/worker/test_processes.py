"""Tasks in processes of their own: the same outcomes, transactions and hooks; and limits that hold whatever they do."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, JobState
from dibs.errors import InvalidOption
from dibs.operations import workers
from tests.actors import Actors
from tests.apps import on_file_first

MODULE = "tests.worker.processed"
PATIENCE = 30.0


@pytest.fixture
def tasks(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the tasks, on a fresh database."""
    monkeypatch.setenv("DIBS_URL", url)
    sys.modules.pop(MODULE, None)
    module = importlib.import_module(MODULE)
    yield module
    module.app.close()
    sys.modules.pop(MODULE, None)


@pytest.fixture
def actors(tasks: Any) -> Actors:
    actors = Actors(tasks.app.engine)
    actors.sql("create table effects (n integer)")
    return actors


def effects(actors: Actors) -> list[int]:
    return sorted(row[0] for row in actors.sql("select n from effects"))


def until_gone(pids: list[int]) -> None:
    """Wait until they have ended: reaped, or nobody's any more."""
    deadline = time.monotonic() + PATIENCE
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still alive: {pids}"
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_process_adds_to_the_batch_of_its_job(tasks: Any) -> None:
    with tasks.app.batch() as batch:
        batch.add([tasks.spread.call(n=3)])
    tasks.app.drain()
    progress = batch.progress()
    assert (progress.total, progress.successful, progress.state) == (4, 4, "FINISHED")


def written(path: Path) -> list[int]:
    """The numbers in a file, as soon as they are there."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(number) for number in path.read_text().split()]


# Running


def test_it_runs_elsewhere_and_the_result_comes_back(tasks: Any) -> None:
    jobs = [tasks.double.enqueue(n=n) for n in range(5)]
    assert tasks.app.drain(concurrency=1).successful == 5
    results = [job.refresh().result for job in jobs]
    assert [result["double"] for result in results] == [0, 2, 4, 6, 8]
    assert [result["job"] for result in results] == [job.id for job in jobs]
    (pid,) = {result["pid"] for result in results}  # one slot, one process
    assert pid != os.getpid()
    until_gone([pid])


@on_file_first
def test_jobs_run_side_by_side(tasks: Any) -> None:
    tasks.app.enqueue_many(tasks.double.call(n=n) for n in range(50))
    report = tasks.app.drain(concurrency=4)
    assert (report.successful, report.failed) == (50, 0)


@on_file_first
def test_coroutines_run_there_too(tasks: Any) -> None:
    job = tasks.adouble.enqueue(n=21)
    tasks.app.drain()
    assert job.refresh().result == 42


@on_file_first
@pytest.mark.parametrize(
    "how, said",
    [
        ("raise", "ValueError: on purpose"),
        ("permanent", "Permanent: never"),
        ("exit", "SystemExit: 3"),
        ("result", "InvalidPayload: The result cannot be written as JSON"),
        ("kill", "ProcessDied: The process of the job was killed by SIGKILL before the job had ended."),
        ("crash", "ProcessDied: The process of the job was killed by SIGSEGV before the job had ended."),
        ("close", "ProcessDied: The process of the job was killed by SIGKILL before the job had ended."),
        ("fork", "ProcessDied: The process of the job ended with code 5 before the job had ended."),
    ],
)
def test_a_job_that_fails_fails_alone(tasks: Any, how: str, said: str) -> None:
    bad, good = tasks.fail.enqueue(how=how), tasks.double.enqueue(n=1)
    report = tasks.app.drain(concurrency=1)
    assert (report.failed, report.successful) == (1, 1)
    failed = bad.refresh()
    assert (failed.state, failed.attempts) == (JobState.FAILED, 1)
    assert failed.error.startswith(said)
    assert good.refresh().result["double"] == 2


@on_file_first
def test_a_task_that_a_coroutine_began_there_does_not_end_the_process(tasks: Any) -> None:
    job = tasks.leave.enqueue()
    tasks.app.drain()
    assert "SystemExit: 3, in a task that the job began" in str(job.refresh().error)


@on_file_first
def test_the_traceback_is_that_of_the_task(tasks: Any) -> None:
    job = tasks.fail.enqueue(how="raise")
    tasks.app.drain()
    (failure,) = job.refresh().failures
    assert 'raise ValueError("on purpose")' in failure["traceback"]


def test_retries_and_snoozes_are_passed_on(tasks: Any, tmp_path: Path) -> None:
    retried, snoozed = tasks.later.enqueue(), tasks.snooze.enqueue(path=str(tmp_path / "snoozed"))
    tasks.app.drain()
    assert (retried.refresh().result, snoozed.refresh().result) == ("second", "attempt 1")


def test_progress_is_passed_on(tasks: Any) -> None:
    job = tasks.progress.enqueue()
    tasks.app.drain()
    assert job.refresh().progress == {"done": 2, "total": 2, "message": "step 2"}


@on_file_first
def test_a_task_that_another_process_cannot_find_fails_with_the_reason(tasks: Any) -> None:
    job = tasks.hidden.enqueue()
    tasks.app.drain()
    assert (job.refresh().state, job.refresh().attempts) == (JobState.FAILED, 1)
    assert "decorated there" in job.refresh().error


def test_a_function_inside_another_is_refused(app: Dibs) -> None:
    with pytest.raises(InvalidOption, match="top level"):

        @app.task(process=True)
        def inner() -> None: ...


@on_file_first
def test_a_script_may_have_such_tasks(url: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from dibs import Dibs\n"
        f"app = Dibs({url!r})\n"
        "@app.task(process=True)\n"
        "def double(n: int) -> int:\n"
        "    return 2 * n\n"
        "if __name__ == '__main__':\n"
        "    job = double.enqueue(n=21)\n"
        "    app.drain()\n"
        "    print(job.refresh().state, job.refresh().result)\n"
    )
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE)
    assert said.stdout == "SUCCESSFUL 42\n", said.stderr


# Limits


@on_file_first
def test_a_job_that_takes_too_long_is_killed_with_all_it_started(tasks: Any, tmp_path: Path) -> None:
    job, good = tasks.hang.enqueue(pids=str(tmp_path / "pids")), tasks.double.enqueue(n=1)
    report = tasks.app.drain()
    assert (report.failed, report.successful) == (1, 1)
    assert job.refresh().error == "TimeoutError: it ran longer than 0.5 s, and its process was killed"
    assert good.refresh().state is JobState.SUCCESSFUL
    until_gone(written(tmp_path / "pids"))


async def test_a_job_that_is_cancelled_is_killed(tasks: Any, tmp_path: Path) -> None:
    job = await tasks.wait.aenqueue(pids=str(tmp_path / "pids"))
    async with asyncio.timeout(PATIENCE), tasks.app.running():
        pids = await asyncio.to_thread(written, tmp_path / "pids")
        assert await tasks.app.acancel(job.id)
        await asyncio.to_thread(until_gone, pids)
        assert (await (await tasks.double.aenqueue(n=1)).ajoin(PATIENCE)).result["double"] == 2
    await tasks.app.aclose()


async def test_a_worker_that_stops_kills_what_does_not_end_and_hands_it_back(
    tasks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await tasks.wait.aenqueue(pids=str(tmp_path / "pids"))
    async with asyncio.timeout(PATIENCE), tasks.app.running() as worker:
        pids = await asyncio.to_thread(written, tmp_path / "pids")
        worker.stop()
        worker.stop()
    await asyncio.to_thread(until_gone, pids)
    waiting = await tasks.app.aget(job.id)
    await tasks.app.aclose()
    assert (waiting.state, waiting.attempts) == (JobState.PENDING, 0)


@on_file_first
def test_a_worker_that_is_killed_leaves_nobody_behind(url: str, tasks: Any, tmp_path: Path) -> None:
    job = tasks.wait.enqueue(pids=str(tmp_path / "pids"))
    command = [sys.executable, "-m", "dibs", "drain", f"{MODULE}:app"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = written(tmp_path / "pids")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    try:
        until_gone(pids)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert job.refresh().state is JobState.RUNNING  # until its lease ends


# Transactions and hooks


@pytest.mark.parametrize("kind", ["write", "awrite"])
def test_effects_and_success_commit_together(tasks: Any, actors: Actors, kind: str) -> None:
    job = getattr(tasks, kind).enqueue(n=1)
    report = tasks.app.drain()
    assert (report.successful, effects(actors)) == (1, [1])
    assert (job.refresh().state, job.refresh().result) == (JobState.SUCCESSFUL, {"wrote": 1})


@pytest.mark.parametrize("kind", ["write", "awrite"])
def test_a_body_that_raises_leaves_nothing(tasks: Any, actors: Actors, kind: str) -> None:
    job = getattr(tasks, kind).enqueue(n=1, error="no")
    report = tasks.app.drain()
    assert (report.failed, effects(actors), job.refresh().error) == (1, [], "ValueError: no")


@pytest.mark.parametrize("kind", ["write", "awrite"])
def test_a_process_that_dies_after_its_commit_has_done_its_job(tasks: Any, actors: Actors, kind: str) -> None:
    job = getattr(tasks, kind).enqueue(n=1, dies=True)
    report = tasks.app.drain()
    assert (report.successful, report.failed, effects(actors)) == (1, 0, [1])
    assert (job.refresh().state, job.refresh().result) == (JobState.SUCCESSFUL, {"wrote": 1})


def test_a_process_may_go_on_after_its_commit(tasks: Any, actors: Actors, tmp_path: Path) -> None:
    done = tmp_path / "done"
    tasks.go_on.enqueue(done=str(done))
    report = tasks.app.drain()
    assert (done.exists(), report.successful, effects(actors)) == (True, 1, [1])


def test_the_hook_of_a_failed_job_runs_with_its_end(tasks: Any, actors: Actors) -> None:
    job = tasks.costly.enqueue()
    tasks.app.drain()
    assert (job.refresh().state, effects(actors)) == (JobState.FAILED, [job.id])


def test_what_was_done_already_is_not_run(tasks: Any, actors: Actors) -> None:
    job = tasks.once.enqueue(n=7)
    victim = actors.worker()
    assert victim.claim(1)
    tasks.app.engine.run(workers.recover(known=[victim.id]))
    tasks.app.drain()
    assert (job.refresh().state, job.refresh().result) == (JobState.SUCCESSFUL, {"found": 7})


@on_file_first
def test_middleware_goes_around_it(tasks: Any) -> None:
    seen: list[str] = []

    @tasks.app.middleware
    async def around(job: Any, run: Any) -> Any:
        try:
            return {**(await run()), "around": True}
        except Exception as error:
            seen.append(str(error))
            raise

    good, bad = tasks.double.enqueue(n=1), tasks.fail.enqueue(how="raise")
    tasks.app.drain()
    assert good.refresh().result["around"] is True
    assert (seen, bad.refresh().error) == (["ValueError: on purpose"], "ValueError: on purpose")
