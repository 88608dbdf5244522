"""`dibs batches`: what people and scripts see of batches, and what they can do to them."""

import json

import pytest

from dibs import Dibs
from tests.apps import on_one
from tests.cli.commands import Shell

APP = """
from dibs import Dibs
app = Dibs({url!r})

@app.task(name="work", max_attempts=1)
def work(n: int) -> None:
    if n < 0:
        raise ValueError(n)

@app.task(name="completed")
def completed(batch_id: int) -> None: ...
"""


@pytest.fixture
def name(shell: Shell, url: str, app: Dibs) -> str:
    app.migrate()

    @app.task(name="work", max_attempts=1)
    def work(n: int) -> None:
        if n < 0:
            raise ValueError(n)

    return shell.write(APP.format(url=url)) + ":app"


def begun(app: Dibs, *numbers: int, name: str | None = None) -> int:
    from dibs.calls import Call

    batch = app.batch(name=name).begin()
    declared = app.tasks["work"]
    batch.add(Call(declared.new_job(declared.options, (), {"n": n})) for n in numbers)
    return batch.id


def test_batches_are_listed_and_shown(shell: Shell, name: str, app: Dibs) -> None:
    assert shell.dibs("batches", "list", name).output == "no such batch\n"
    first = begun(app, 1, -2, 3, name="numbers")
    app.drain()
    second = begun(app)
    app.get_batch(second).close()
    listed = shell.dibs("batches", "list", name).output.splitlines()
    heads = ("id", "name", "state", "jobs", "successful", "failed", "cancelled", "unfinished", "begun")
    assert tuple(listed[0].split()) == heads
    assert listed[2].split()[:8] == [str(first), "numbers", "OPEN", "3", "2", "1", "0", "0"]
    shown = json.loads(shell.dibs("batches", "list", name, "--unfinished", "--limit", "1", "--json").output)
    assert [each["id"] for each in shown["batches"]] == [first]
    assert shown["cursor"] == first
    assert f"more: --cursor {second}" in shell.dibs("batches", "list", name, "--limit", "1").output
    one = shell.dibs("batches", "show", name, str(first)).output
    assert "name          numbers\nstate         OPEN\nunfinished    0\ntotal         3\n" in one
    assert json.loads(shell.dibs("batches", "show", name, str(first), "--json").output)["failed"] == 1


def test_a_batch_is_watched_to_its_end(shell: Shell, name: str, app: Dibs) -> None:
    good, bad = begun(app, 1, 2, name="good"), begun(app, 1, -2)
    app.drain()
    for batch in (good, bad):
        assert "is FINISHED" in shell.dibs("batches", "close", name, str(batch)).output
        closed = shell.dibs("batches", "close", name, str(batch), "--json").output
        assert json.loads(closed) == {"id": batch, "state": "FINISHED"}
    watched = shell.dibs("batches", "watch", name, str(good))
    assert watched.exit_code == 0
    assert "good" in watched.output
    assert "2/2" in watched.output
    watched = shell.dibs("batches", "watch", name, str(bad))
    assert (watched.exit_code, "1 failed" in watched.output) == (1, True)
    lines = shell.dibs("batches", "watch", name, str(bad), "--json").output.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["FINISHED"]


def test_what_is_left_is_cancelled_and_what_failed_is_retried(shell: Shell, name: str, app: Dibs) -> None:
    batch = str(begun(app, -1))
    app.drain()
    assert shell.dibs("batches", "retry", name, batch).output == "retried 1 job\n"
    assert json.loads(shell.dibs("batches", "retry", name, batch, "--json").output) == {"retried": 0}
    assert shell.dibs("batches", "cancel", name, batch, input="n\n").exit_code == 1
    assert shell.dibs("batches", "cancel", name, batch, "--json").exit_code == 2
    assert app.get_batch(int(batch)).progress().cancelled == 0
    assert shell.dibs("batches", "cancel", name, batch, "--yes").output == "cancelled 1 job\n"
    assert app.get_batch(int(batch)).progress().state == "FINISHED"


@on_one
def test_mistakes(shell: Shell, name: str) -> None:
    for command in ("show", "watch", "cancel", "retry", "close"):
        assert "There is no batch 7" in shell.dibs("batches", command, name, "7").output
        assert shell.dibs("batches", command, name).exit_code == 2
        wrong = shell.dibs("batches", command, name, "seven")
        assert (wrong.exit_code, "'seven' is not the id of a batch" in wrong.output) == (2, True)
