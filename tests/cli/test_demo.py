"""`dibs demo`: the tour does what it shows."""

import re

import pytest

from tests.cli.commands import Shell


@pytest.mark.slow
def test_the_tour_ends_well_and_leaves_nothing_behind(shell: Shell) -> None:
    said = shell.real("demo")
    assert said.returncode == 0, said.stdout + said.stderr
    text = " ".join(said.stdout.split())
    (killed,) = re.findall(r"kill -9 (\d+)", text)
    assert "job 2, mail: RETRY after ConnectionError: the mail server is away" in text
    assert "job 1, charge: taken over after" in text
    assert "8 of 8 jobs are SUCCESSFUL." in text
    assert f"Process {killed} was killed with SIGKILL" in text
    assert "charged 1 time, 500 cents" in text
    assert [*shell.folder.iterdir()] == []
