"""The words of the log: one line for each event, the same from a worker and from a drain."""

from __future__ import annotations

import logging

from dibs.job import JobState
from dibs.lifecycle import Back, Change, Done, Way
from dibs.payload import decode

log = logging.getLogger("dibs")


class JobLog:
    """The two lines of every job. They come by the thousand, so whoever writes the log may have a quicker way."""

    def claimed(self, job: int | str, worker: str) -> None:
        """It begins."""
        log.info("Job %s claimed by %s", job, worker)

    def ended(self, job: int | str, change: Change, seconds: float) -> None:
        """It came to this."""
        level, text = said(change, seconds)
        log.log(level, "Job %s %s", job, text)

    def flush(self) -> None:
        """What is still unwritten."""


def said(change: Change, seconds: float) -> tuple[int, str]:
    """What became of a job, for the log, and how grave it is.

    >>> said(Done(JobState.SUCCESSFUL), 45.21), said(Back(Way.RETRY, 3.0, b'{"error":"ValueError: no"}'), 0.5)
    ((20, 'completed in 45.2s'), (30, 'failed after 0.5s, next attempt in 3.0s: ValueError: no'))
    """
    match change:
        case Done(state=JobState.SUCCESSFUL):
            return logging.INFO, f"completed in {seconds:.1f}s"
        case Done(state=JobState.CANCELLED):
            return logging.INFO, f"cancelled after {seconds:.1f}s"
        case Done(failure=failure):
            return logging.ERROR, f"failed for good after {seconds:.1f}s{_why(failure)}"
        case Back(way=Way.RELEASE, failure=bytes() as failure, delay=delay):
            return logging.WARNING, f"may have been done already, asked again in {delay:.1f}s{_why(failure)}"
        case Back(way=Way.RELEASE):
            return logging.INFO, f"was handed back after {seconds:.1f}s"
        case Back(way=Way.SUBMITTED):
            return logging.INFO, f"accepted by its provider after {seconds:.1f}s"
        case Back(way=Way.POLL, delay=delay):
            return logging.INFO, f"is with its provider still, asked again in {delay:.1f}s"
        case Back(way=Way.SNOOZE, delay=delay):
            return logging.INFO, f"was snoozed after {seconds:.1f}s, for {delay:.1f}s"
        case Back(way=Way.FINISH, failure=None, delay=delay):
            return logging.WARNING, f"waits for its on_failure hook, next try in {delay:.1f}s"
        case Back(way=Way.FINISH, failure=failure):
            return logging.ERROR, f"failed for good after {seconds:.1f}s, its on_failure hook comes next{_why(failure)}"
        case Back(delay=delay, failure=failure):
            return logging.WARNING, f"failed after {seconds:.1f}s, next attempt in {delay:.1f}s{_why(failure)}"


def _why(failure: bytes | None) -> str:
    """The first line of the error."""
    return "" if failure is None else ": " + str(decode(failure)["error"]).partition("\n")[0]
