"""Real processes for a test: started, killed, stopped and replaced; none outlives the test, or the run."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# Each process is forked from a server that has the imports behind it and holds no connection, lock or thread of ours:
# 10 ms to start one, where a new interpreter takes half a second.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["dibs.engines.postgres.engine", "dibs.worker.lane", "dibs.worker.heart"])
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Flag:
    """A sign to other processes: a file. It has no lock that one of them could take along when it is killed."""

    path: Path

    def set(self) -> None:
        """Put it up."""
        self.path.touch()

    def is_set(self) -> bool:
        """Whether it is up."""
        return self.path.exists()

    async def wait(self) -> None:
        """Until it is up."""
        while not self.is_set():  # noqa: ASYNC110  # a file cannot tell
            await asyncio.sleep(0.01)


@dataclass
class Crew:
    """The processes of one test."""

    folder: Path
    members: list[BaseProcess] = field(default_factory=list)

    @classmethod
    @contextmanager
    def hire(cls, folder: Path) -> Iterator["Crew"]:
        """Nobody yet; whoever is left at the end is killed."""
        crew = cls(folder)
        try:
            yield crew
        finally:
            for member in crew.members:
                member.kill()
                member.join()

    def flag(self, name: str) -> Flag:
        """A sign that is not up yet."""
        return Flag(self.folder / name)

    def start(self, work: Callable[..., None], *args: Any) -> BaseProcess:
        """Start one; `work` is a function that can be imported."""
        member = CONTEXT.Process(target=_at_work, args=(self.folder, work, args), daemon=True)
        member.start()
        self.members.append(member)
        return member

    def kill(self, member: BaseProcess) -> None:
        """SIGKILL, and wait until it is gone."""
        member.kill()
        member.join(PATIENCE_SECONDS)
        self.members.remove(member)

    def pause(self, member: BaseProcess) -> None:
        """SIGSTOP."""
        os.kill(_pid(member), signal.SIGSTOP)

    def resume(self, member: BaseProcess) -> None:
        """SIGCONT."""
        os.kill(_pid(member), signal.SIGCONT)

    def join(self) -> None:
        """Wait until everyone has ended, by themselves and well."""
        until = time.monotonic() + PATIENCE_SECONDS
        for member in self.members:
            member.join(max(0.0, until - time.monotonic()))
        self.check()
        assert [member.exitcode for member in self.members] == [0] * len(self.members)

    def check(self) -> None:
        """Nobody has failed so far."""
        reports = [report.read_text() for report in sorted(self.folder.glob("failed-*"))]
        assert not reports, "processes of the crew failed:\n" + "\n".join(reports)


def until(happened: Callable[[], bool], crew: Crew, what: str, patience: float = PATIENCE_SECONDS) -> None:
    """Go on as soon as it has happened."""
    deadline = time.monotonic() + patience
    while not happened():
        crew.check()
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}"
        time.sleep(0.01)


def _pid(member: BaseProcess) -> int:
    assert member.pid is not None
    return member.pid


def _at_work(folder: Path, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    try:
        work(*args)
    except BaseException:
        (folder / f"failed-{os.getpid()}").write_text(traceback.format_exc())
        raise


def _end_with_the_test() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
