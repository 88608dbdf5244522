"""The words of the log: one line for each event, the same from a worker and from a drain."""

from __future__ import annotations

import logging

from dibs.job import JobState
from dibs.lifecycle import Back, Change, Done, Way

log = logging.getLogger("dibs")


class JobLog:
    """The two lines of every job. They come by the thousand, so whoever writes the log may have a quicker way."""

    def claimed(self, job: int, worker: str) -> None:
        """It begins."""
        log.info("Job %s claimed by %s", job, worker)

    def ended(self, job: int, change: Change, seconds: float) -> None:
        """It came to this."""
        if log.isEnabledFor(logging.INFO):
            log.info("Job %s %s in %.1fs", job, said(change), seconds)

    def flush(self) -> None:
        """What is still unwritten."""


def said(change: Change) -> str:
    """What became of a job, for the log."""
    match change:
        case Done(state=JobState.SUCCESSFUL):
            return "completed"
        case Done():
            return "failed for good"
        case Back(way=Way.RELEASE):
            return "was handed back"
        case Back(way=Way.SNOOZE):
            return "was snoozed"
        case Back(way=Way.FINISH):
            return "failed for good, and its hook comes next"
        case Back():
            return "failed and waits for another attempt"
