"""`dibs drain`: run what is due, and end."""

import json
import signal
import subprocess

import pytest

from dibs import Dibs
from tests.cli.commands import PROGRAM, Shell

APP = """
from dibs import Dibs
app = Dibs({url!r})

@app.task(name="greet")
def greet(name: str) -> str:
    return f"hello {{name}}"

@app.task(name="broken", max_attempts=1)
def broken() -> None:
    raise ValueError("boom")
"""


STOPPED = """
import asyncio
from dibs import Dibs
app = Dibs({url!r}, grace=0.1)

@app.task(name="endless")
async def endless() -> None:
    print("begun", flush=True)
    await asyncio.Event().wait()
"""


@pytest.fixture
def name(shell: Shell, url: str) -> str:
    return shell.write(APP.format(url=url)) + ":app"


def add(app: Dibs, count: int, **options: object) -> None:
    greet = app.task(name="greet")(lambda name: None)
    app.enqueue_many(greet.using(**options).call(name=str(n)) for n in range(count))
    app.tasks.clear()


def test_it_says_what_it_did(shell: Shell, name: str, app: Dibs) -> None:
    add(app, 3)
    result = shell.dibs("drain", name)
    assert result.exit_code == 0
    assert result.output.startswith("claimed 3 of 3 jobs in ")
    assert result.output.endswith("s: 3 successful\n")
    assert app.get(1).result == "hello 0"


def test_for_machines(shell: Shell, name: str, app: Dibs) -> None:
    add(app, 2)
    report = json.loads(shell.dibs("drain", name, "--json").output)
    assert (report["claimed"], report["successful"], report["failed"]) == (2, 2, 0)
    assert report["seconds"] > 0


def test_its_options(shell: Shell, name: str, app: Dibs) -> None:
    add(app, 2, queue="a")
    add(app, 2, queue="b")
    add(app, 2, queue="c")
    options = ["--limit", "3", "--concurrency", "1", "--deadline", "50", "--queues", " b, a,", "--json"]
    report = json.loads(shell.dibs("drain", name, *options).output)
    assert (report["available"], report["claimed"]) == (4, 3)
    assert [app.get(n).state for n in range(1, 7)] == [
        "SUCCESSFUL",
        "PENDING",
        "SUCCESSFUL",
        "SUCCESSFUL",
        "PENDING",
        "PENDING",
    ]


def test_failed_jobs_are_no_failure_of_the_command(shell: Shell, name: str, app: Dibs) -> None:
    app.task(name="broken", max_attempts=1)(lambda: None).enqueue()
    result = shell.dibs("drain", name)
    assert result.exit_code == 0
    assert "1 failed" in result.output


@pytest.mark.parametrize(
    "options",
    [
        ["--limit", "-1"],
        ["--limit", "many"],
        ["--concurrency", "0"],
        ["--deadline", "0"],
        ["--deadline", "-5"],
        ["--queues", ""],
        ["--queues", " , "],
        ["--nothing"],
    ],
)
def test_a_wrong_option_is_a_wrong_call(shell: Shell, name: str, options: list[str]) -> None:
    result = shell.dibs("drain", name, *options)
    assert result.exit_code == 2
    assert options[0] in result.output


@pytest.mark.slow
def test_the_real_program(shell: Shell, name: str, app: Dibs) -> None:
    add(app, 2)
    done = shell.real("drain", name, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["successful"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_hands_back_what_does_not_end(shell: Shell, url: str, app: Dibs, number: int) -> None:
    name = shell.write(STOPPED.format(url=url))
    app.task(name="endless")(lambda: None).enqueue()
    with subprocess.Popen([PROGRAM, "drain", f"{name}:app"], cwd=shell.folder, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "begun\n"
        it.send_signal(number)
        said, _ = it.communicate(timeout=60)
    assert it.returncode == 0
    assert said.endswith("1 released\n")
    assert (app.get(1).state, app.get(1).attempts) == ("PENDING", 0)


def test_a_database_has_no_tasks(shell: Shell, url: str, app: Dibs) -> None:
    result = shell.dibs("drain", url)
    assert result.exit_code == 1
    assert f"{url} declares no task, so there is nothing to run. Name the app" in result.output.replace("\n", " ")
