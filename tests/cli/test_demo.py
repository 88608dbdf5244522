"""`dibs demo`: the tour does what it shows."""

import os
import pty
import re
import subprocess
import time
from contextlib import suppress

import pytest

from tests.cli.commands import PROGRAM, Shell

LONGEST = 30.0  # seconds


def on_terminal(shell: Shell) -> tuple[int, str]:
    """Its exit code, and what somebody saw."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": "200", "LINES": "50", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [PROGRAM, "demo"], cwd=shell.folder, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **size}
    )
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # what reading says when the other side is closed
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    return process.wait(LONGEST), seen.decode()


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_the_tour_ends_well_and_leaves_nothing_behind(shell: Shell, terminal: bool) -> None:
    began = time.monotonic()
    if terminal:
        code, said = on_terminal(shell)
    else:
        done = shell.real("demo")
        code, said = done.returncode, done.stdout + done.stderr
    assert time.monotonic() - began < LONGEST
    assert code == 0, said
    assert ("█" in said, "░" in said) == (terminal, terminal)
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said).split())
    (killed,) = re.findall(r"kill -9 (\d+)", text)
    assert "job 2, mail: RETRY after ConnectionError: the mail server is away" in text
    assert "job 1, charge: taken over after" in text
    assert "8 of 8 jobs are SUCCESSFUL." in text
    assert f"Process {killed} was killed with SIGKILL" in text
    assert "charged 1 time, 500 cents" in text
    assert [*shell.folder.iterdir()] == []
