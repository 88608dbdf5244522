"""The words of the log: one line for each event, the same from a worker and from a drain."""

from __future__ import annotations

from dibs.job import JobState
from dibs.lifecycle import Back, Change, Done, Way


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
