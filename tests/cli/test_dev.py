"""`dibs dev`: the code as it is now runs the jobs."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from dibs import Dibs
from tests.apps import on_file_first
from tests.cli.commands import PROGRAM, Shell
from tests.servers.ports import free_port

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
    with running(shell, "dev", f"{name}:app", "--no-server") as lines:
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


@pytest.mark.slow
@on_file_first
def test_a_server_beside_the_worker(shell: Shell, url: str) -> None:
    port = free_port()
    name = shell.write(APP.format(url=url, version="old"))
    address = f"http://127.0.0.1:{port}"
    with running(shell, "dev", f"{name}:app", "--port", str(port)) as lines:
        lines.wait_for("Uvicorn running on")
        assert httpx.post(f"{address}/api/jobs", json={"type": "version"}).status_code == 201
        (shell.folder / f"{name}.py").write_text(APP.format(url=url, version="new").replace('"version"', '"other"'))
        lines.wait_for("Uvicorn running on")
        assert httpx.post(f"{address}/api/jobs", json={"type": "version"}).json()["code"] == "unknown_task"


def test_a_directory_that_is_not_there(shell: Shell) -> None:
    result = shell.dibs("dev", "shop:app", "--watch", "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.output
