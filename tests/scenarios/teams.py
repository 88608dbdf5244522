"""Whole workers for a test: `dibs worker` as a user starts it, with the app that a module of the test declares."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dibs import Dibs
from dibs.operations import workers

PATIENCE = 60.0
MODULE = "shop"


@dataclass
class Team:
    """The workers of one test; none outlives it."""

    folder: Path
    url: str
    settings: dict[str, Any]
    app: Dibs
    members: list["Member"] = field(default_factory=list)

    @classmethod
    @contextmanager
    def hire(cls, folder: Path, url: str, code: str, **settings: Any) -> Iterator["Team"]:
        """Nobody yet. `code` declares the tasks of `app`; it may use `ledger(text)`, which outlives a SIGKILL."""
        text = f"""
import asyncio, os, time
from dibs import Dibs, current_job
app = Dibs({url!r}, **{settings!r})

def ledger(text):
    file = os.open({str(folder / "ledger")!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{{text}}\\n".encode())
    os.close(file)
"""
        (folder / f"{MODULE}.py").write_text(text + code)
        app = Dibs(url, **settings)
        team = cls(folder, url, settings, app)
        try:
            yield team
        finally:
            for member in team.members:
                member.end()
            app.close()

    def start(self, *options: str, **environment: str) -> "Member":
        """One more supervisor with its children; returns when a worker of it has begun."""
        member = self.begin(*options, **environment)
        self.until(lambda: self._has_begun(member), "a worker began")
        return member

    def begin(self, *options: str, **environment: str) -> "Member":
        """The same, without waiting for it."""
        log = self.folder / f"log-{len(self.members)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "dibs", "worker", f"{MODULE}:app", *options],
                cwd=self.folder,
                stderr=file,
                stdout=file,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            )
        member = Member(process, log)
        self.members.append(member)
        return member

    def _has_begun(self, member: "Member") -> bool:
        assert member.process.poll() is None, f"it ended:\n{member.said()}"
        names = [row.name for row in self.app.engine.run(workers.list_workers())]
        return any(f"-{pid}-" in name for pid in member.children() for name in names)

    def add(self, task: str, count: int = 1, *, first: int = 0, **options: Any) -> list[int]:
        """Jobs of a task that the module declares, each with its number."""
        from dibs.job import NewJob
        from dibs.operations import jobs
        from dibs.payload import encode

        new = [NewJob(f"{MODULE}.{task}", encode({"n": n}), **options) for n in range(first, first + count)]
        return [int(job_id) for job_id in self.app.engine.run(jobs.add_many(new))]

    def ledger(self) -> list[str]:
        """What the tasks have written, line by line."""
        path = self.folder / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, happened: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Go on as soon as it has happened."""
        deadline = time.monotonic() + patience
        while not happened():
            assert time.monotonic() < deadline, f"not within {patience:g} s: {what}\n{self.logs()}"
            time.sleep(0.01)

    def logs(self) -> str:
        """What all of them have said."""
        return "\n".join(member.log.read_text() for member in self.members)[-6000:]


@dataclass
class Member:
    """A supervisor and its children."""

    process: subprocess.Popen[bytes]
    log: Path
    known: set[int] = field(default_factory=set)

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text()

    def until(self, text: str) -> None:
        """Until its log has this."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said():
            assert time.monotonic() < deadline, f"{text!r} was not said:\n{self.said()}"
            assert self.process.poll() is None, f"it ended:\n{self.said()}"
            time.sleep(0.01)

    def children(self) -> list[int]:
        """The worker processes that it has now."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = [int(pid) for pid in path.read_text().split()] if path.exists() else []
        self.known.update(found)
        return found

    def signal(self, number: int) -> None:
        """To the supervisor."""
        self.process.send_signal(number)

    def kill_child(self) -> int:
        """SIGKILL to one of its children; which it was."""
        pid = self.children()[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        """SIGTERM, and wait; its exit code."""
        self.children()
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Whatever is left of it."""
        self.children()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.known:
            if _is_ours(pid):
                os.kill(pid, signal.SIGKILL)


def _is_ours(pid: int) -> bool:
    try:
        return MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def said_as_json(text: str) -> list[dict[str, Any]]:
    """A log of `--log-format json`."""
    return [json.loads(line) for line in text.splitlines()]
