"""What a worker has done, and when it has had enough."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from dibs.job import JobState
from dibs.lifecycle import Back, Change, Done, Way

PAGE = os.sysconf("SC_PAGE_SIZE")


class Counts(Protocol):
    """Who counts what jobs came to."""

    successful: int
    failed: int
    released: int
    retried: int
    processing: int


def count(counts: Counts, change: Change, number: int = 1) -> None:
    """So many jobs came to this."""
    match change:
        case Done(state=JobState.SUCCESSFUL):
            counts.successful += number
        case Done():
            counts.failed += number
        case Back(way=Way.RELEASE, failure=None):
            counts.released += number
        case Back(way=Way.SUBMITTED):
            counts.processing += number
        case Back(way=Way.POLL):
            pass
        case Back():
            counts.retried += number


@dataclass(slots=True)
class Stats:
    """What a worker has done since it began."""

    claimed: int = 0
    successful: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    processing: int = 0  # accepted by their providers
    refused: int = 0
    recovered: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker has had enough and ends, for another to take its place."""

    jobs: int | None = None
    megabytes: int | None = None

    def reached(self, stats: Stats) -> str | None:
        """Which one, if any."""
        if self.jobs is not None and stats.claimed >= self.jobs:
            return f"it has run {stats.claimed:,} jobs"
        if self.megabytes is not None and (used := memory()) > self.megabytes:
            return f"it has grown to {used:,.0f} MB"
        return None


def memory(process: int | str = "self") -> float:
    """Megabytes that this process, or another one, has in memory."""
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * PAGE / 1e6
