"""Programs as jobs: what is kept of them, how they fail, and that nothing of them stays behind."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, JobState, Task
from dibs.errors import InvalidPayload
from dibs.worker.commands import SAID_FAILED, TAIL
from tests.apps import on_file_first
from tests.worker.test_processes import until_gone, written

pytestmark = on_file_first

PYTHON = [sys.executable, "-"]


@pytest.fixture
def command(app: Dibs) -> Task[..., Any]:
    return app.commands(max_attempts=1)


def result_of(app: Dibs, command: Task[..., Any], *arguments: str, **options: Any) -> Any:
    job = command.enqueue(arguments=list(arguments), **options)
    report = app.drain()
    assert report.successful == 1, job.refresh().error
    return job.refresh().result


def error_of(app: Dibs, command: Task[..., Any], *arguments: str, **options: Any) -> str:
    job = command.enqueue(arguments=list(arguments), **options)
    assert app.drain().failed == 1
    assert job.refresh().state is JobState.FAILED
    return str(job.refresh().error)


def test_code_on_standard_input_is_run(app: Dibs, command: Task[..., Any]) -> None:
    said = result_of(app, command, *PYTHON, stdin="import sys; print('test'); print('☃', file=sys.stderr)")
    assert said == {"exitCode": 0, "stdout": "test\n", "stderr": "☃\n"}


def test_arguments_are_not_read_by_a_shell(app: Dibs, command: Task[..., Any]) -> None:
    assert result_of(app, command, "echo", "$HOME; false", "* && exit 1")["stdout"] == "$HOME; false * && exit 1\n"


def test_another_code_is_a_failure_that_tells_what_was_said(app: Dibs, command: Task[..., Any]) -> None:
    error = error_of(app, command, *PYTHON, stdin="import sys; print('out'); sys.exit('bad luck')")
    assert error == f"CommandFailed: {sys.executable} ended with code 1\nstdout: out\n\nstderr: bad luck\n"


def test_what_one_said_that_failed_is_kept(app: Dibs, command: Task[..., Any]) -> None:
    code = "import sys; print('x' * 10_000 + 'out'); print('y' * 10_000 + 'err', file=sys.stderr); sys.exit(3)"
    job = command.enqueue(arguments=PYTHON, stdin=code)
    app.drain()
    (failure,) = job.refresh().failures
    assert (failure["exitCode"], failure["stdout"][-5:], failure["stderr"][-5:]) == (3, "xout\n", "yerr\n")
    assert {len(failure[name]) for name in ("stdout", "stderr")} == {SAID_FAILED}


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["too late", "killed"])
def test_what_one_said_that_did_not_end_by_itself_is_kept(
    app: Dibs, command: Task[..., Any], tmp_path: Path, ends: str
) -> None:
    code = f"""
import os, signal, sys, time
print("out", flush=True)
print("err", file=sys.stderr, flush=True)
time.sleep(1)
{"os.killpg(0, signal.SIGKILL)" if ends == "killed" else "time.sleep(600)"}
"""
    job = command.enqueue(arguments=PYTHON, stdin=code, timeout=60 if ends == "killed" else 2)
    app.drain()
    (failure,) = job.refresh().failures
    assert (failure["exitCode"], failure["stdout"], failure["stderr"]) == (None, "out\n", "err\n")
    said = "ProcessDied: " if ends == "killed" else "TimeoutError: it ran longer than 2 s, and its process was killed"
    assert failure["error"].startswith(said)


def test_it_is_retried_like_any_task(app: Dibs, tmp_path: Path) -> None:
    command = app.commands(max_attempts=3, retry=0)
    flag = tmp_path / "flag"
    code = f"import pathlib, sys; p = pathlib.Path({str(flag)!r}); sys.exit(0 if p.exists() else p.touch() or 1)"
    job = command.enqueue(arguments=PYTHON, stdin=code)
    app.drain()
    assert (job.refresh().state, job.refresh().attempts) == (JobState.SUCCESSFUL, 2)


def test_a_program_that_is_not_there_is_not_tried_again(app: Dibs) -> None:
    command = app.commands(max_attempts=3)
    job = command.enqueue(arguments=["no-such-program"])
    app.drain()
    assert (job.refresh().state, job.refresh().attempts) == (JobState.FAILED, 1)
    assert str(job.refresh().error).startswith("Permanent: no-such-program cannot be started:")


def test_it_sees_what_it_is_given_and_none_of_our_secrets(
    app: Dibs, command: Task[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:secret@host/db")
    code = "import os; print(os.environ.get('SIZE'), os.environ.get('DATABASE_URL'), 'PATH' in os.environ)"
    assert result_of(app, command, *PYTHON, stdin=code, environment={"SIZE": "7"})["stdout"] == "7 None True\n"


def test_only_the_tail_of_much_is_kept(app: Dibs, command: Task[..., Any]) -> None:
    said = result_of(app, command, *PYTHON, stdin="print('x' * 1_000_000); print('the end')")
    assert len(said["stdout"]) == TAIL
    assert said["stdout"].endswith("xxx\nthe end\n")


def test_output_that_is_no_text_is_kept_as_well_as_can_be(app: Dibs, command: Task[..., Any]) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'a\x00b\xffc')"
    assert result_of(app, command, *PYTHON, stdin=code)["stdout"] == "a\\0b\ufffdc"


def test_a_program_that_reads_nothing_may_have_much_to_read(app: Dibs, command: Task[..., Any]) -> None:
    assert result_of(app, command, "true", stdin="x" * 500_000)["exitCode"] == 0


def test_one_that_takes_too_long_is_killed_with_all_it_started(
    app: Dibs, command: Task[..., Any], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "time.sleep(600)\n"
    )
    error = error_of(app, command, *PYTHON, stdin=code, timeout=3)
    assert error == "TimeoutError: it ran longer than 3 s, and its process was killed"
    until_gone(written(pids))


@pytest.mark.parametrize(
    "arguments, place",
    [
        ({"arguments": "rm -rf /"}, r"\$.arguments"),
        ({"arguments": []}, r"\$.arguments"),
        ({"arguments": [""]}, r"\$.arguments\[0\]"),
        ({"arguments": ["x"], "timeout": 0}, r"\$.timeout"),
        ({"arguments": ["x"], "environment": {"A": 1}}, r"\$.environment"),
        ({"arguments": ["x"], "shell": True}, "shell"),
        ({}, "arguments"),
    ],
)
def test_bad_commands_are_refused_when_they_are_added(
    command: Task[..., Any], arguments: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidPayload, match=place):
        command.enqueue(**arguments)


def test_it_is_off_unless_turned_on(app: Dibs) -> None:
    assert "dibs.command" not in app.tasks
