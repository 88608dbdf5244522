"""`dibs dev`: the code as it is now runs the jobs."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dibs import Dibs
from tests.cli.commands import PROGRAM, Shell

PATIENCE = 30.0
APP = """
from dibs import Dibs
app = Dibs({url!r})

@app.task(name="version")
def version() -> str:
    return {version!r}
"""


class Lines:
    """What a program says, as it says it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process, self.said = process, ""
        self.more = threading.Condition()
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def wait_for(self, text: str) -> None:
        with self.more:
            assert self.more.wait_for(lambda: text in self.said, PATIENCE), self.said
            self.said = self.said.partition(text)[2]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.more:
                self.said += line
                self.more.notify_all()


@contextmanager
def running(shell: Shell, *arguments: str) -> Iterator[Lines]:
    process = subprocess.Popen([PROGRAM, *arguments], cwd=shell.folder, stderr=subprocess.PIPE, text=True)
    lines = Lines(process)
    try:
        yield lines
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        lines.thread.join()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.slow
def test_a_change_starts_the_worker_anew_and_a_mistake_waits_for_its_correction(shell: Shell, url: str) -> None:
    name = shell.write(APP.format(url=url, version="old"))
    file = shell.folder / f"{name}.py"
    other = Dibs(url)
    version = other.task(name="version")(lambda: "")
    with running(shell, "dev", f"{name}:app") as lines:
        assert version.enqueue().join(PATIENCE).result == "old"
        file.write_text(APP.format(url=url, version="new"))
        lines.wait_for(f"Changed: {name}.py")
        lines.wait_for("Worker started")
        assert version.enqueue().join(PATIENCE).result == "new"
        file.write_text("this is no Python")
        lines.wait_for("The worker has ended. It starts anew when a file changes.")
        file.write_text(APP.format(url=url, version="mended"))
        lines.wait_for("Worker started")
        assert version.enqueue().join(PATIENCE).result == "mended"
    other.close()


def test_a_directory_that_is_not_there(shell: Shell) -> None:
    result = shell.dibs("dev", "shop:app", "--watch", "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.output
