"""A ledger outside the queue, which many processes write and which judges the queue: never the queue's own word."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: what happened to which lease, in whose hands."""

    event: str
    job: int
    token: int
    process: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file that everyone appends to. Its order is the order of the writes.

    No fsync: what a process has written outlives its SIGKILL; only the machine could lose it, and the test with it.
    A write that crosses a page can be seen half done, and SIGKILL can leave it so. Hence a line counts once its end
    mark is there, and each write begins on a line of its own.
    """

    path: Path

    def write(self, event: str, *leases: tuple[int, int], process: int | None = None) -> None:
        """Append a line for each lease, all of them in one write."""
        who = os.getpid() if process is None else process
        text = "".join(f"\n{event} {job} {token} {who} ." for job, token in leases)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            assert os.write(file, text.encode()) == len(text)
        finally:
            os.close(file)

    def entries(self) -> Iterator[Entry]:
        """Every whole line, from the first."""
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            match line.split():
                case [event, job, token, process, "."]:
                    yield Entry(event, int(job), int(token), int(process))
