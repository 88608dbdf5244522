"""The state machine: what an outcome does to a job."""

import sys
from typing import Any

import pytest

from dibs.job import Claimed, JobId, JobState
from dibs.lifecycle import (
    HOOK_TRIES,
    Back,
    Change,
    Done,
    Errored,
    Finished,
    Outcome,
    Released,
    Snoozed,
    Successful,
    Unanswered,
    Way,
    after,
    failure,
    hook_is_spent,
)
from dibs.retry import MAX_DELAY, fixed

BOOM = b'{"error":"boom"}'


def claimed(attempts: int = 1, max_attempts: int = 3, finishing: int = 0) -> Claimed:
    return Claimed(JobId(1), 7, "task", "default", None, attempts, max_attempts, 4, None, 0, finishing)


@pytest.mark.parametrize(
    "job, outcome, change",
    [
        (claimed(), Successful(b"1"), Done(JobState.SUCCESSFUL, result=b"1")),
        (claimed(), Successful(), Done(JobState.SUCCESSFUL)),
        (claimed(3), Successful(), Done(JobState.SUCCESSFUL)),
        (claimed(1), Errored(BOOM), Back(Way.RETRY, 30.0, BOOM)),
        (claimed(2), Errored(BOOM), Back(Way.RETRY, 30.0, BOOM)),
        (claimed(2), Errored(BOOM, delay=5.0), Back(Way.RETRY, 5.0, BOOM)),
        (claimed(2), Errored(BOOM, delay=0.0), Back(Way.RETRY, 0.0, BOOM)),
        (claimed(3), Errored(BOOM), Done(JobState.FAILED, failure=BOOM)),
        (claimed(3), Errored(BOOM, delay=5.0), Done(JobState.FAILED, failure=BOOM)),
        (claimed(4), Errored(BOOM), Done(JobState.FAILED, failure=BOOM)),
        (claimed(1, 1), Errored(BOOM), Done(JobState.FAILED, failure=BOOM)),
        (claimed(1), Errored(BOOM, permanent=True), Done(JobState.FAILED, failure=BOOM)),
        (claimed(3), Snoozed(60.0), Back(Way.SNOOZE, 60.0)),
        (claimed(3), Released(), Back(Way.RELEASE)),
        (claimed(3), Unanswered(BOOM, 5.0), Back(Way.RELEASE, 5.0, BOOM)),
        (claimed(3, finishing=2), Unanswered(BOOM, 5.0), Back(Way.RELEASE, 5.0, BOOM)),
        (claimed(3, finishing=2), Released(), Back(Way.RELEASE)),
        (claimed(3, finishing=2), Finished(), Done(JobState.FAILED)),
        (claimed(3, finishing=12), Finished("no more"), Done(JobState.FAILED, hook_error="no more")),
        (claimed(1, finishing=2), Errored(BOOM), Back(Way.FINISH, 30.0)),
        (claimed(1, finishing=12), Finished("no", BOOM), Done(JobState.FAILED, failure=BOOM, hook_error="no")),
    ],
)
def test_an_outcome_changes_a_job(job: Claimed, outcome: Outcome, change: Change) -> None:
    assert after(job, outcome, fixed(30.0)) == change


@pytest.mark.parametrize("outcome", [Errored(BOOM, permanent=True), Errored(BOOM, delay=5.0)])
def test_a_final_failure_with_a_hook_is_finished_first(outcome: Errored) -> None:
    assert after(claimed(3), outcome, fixed(30.0), has_hook=True) == Back(Way.FINISH, 0.0, BOOM)


def test_a_failure_with_attempts_left_needs_no_hook() -> None:
    assert after(claimed(1), Errored(BOOM), fixed(30.0), has_hook=True) == Back(Way.RETRY, 30.0, BOOM)


def test_the_policy_is_asked_for_the_attempt_that_failed() -> None:
    assert after(claimed(2), Errored(BOOM), float) == Back(Way.RETRY, 2.0, BOOM)


def test_the_policy_is_asked_for_the_try_of_the_hook_that_failed() -> None:
    assert after(claimed(3, finishing=2), Errored(BOOM), float) == Back(Way.FINISH, 1.0)


@pytest.mark.parametrize("nonsense", [lambda tries: 1 / 0, lambda tries: "soon", lambda tries: None, sys.exit])
def test_a_policy_that_fails_keeps_no_job(nonsense: Any) -> None:
    assert after(claimed(2), Errored(BOOM), nonsense) == Back(Way.RETRY, 2.0, BOOM)
    assert after(claimed(3, finishing=4), Errored(BOOM), nonsense) == Back(Way.FINISH, 4.0)


@pytest.mark.parametrize("asked, stored", [(-5.0, 0.0), (float("inf"), MAX_DELAY), (float("nan"), 0.0)])
def test_delays_are_bounded(asked: float, stored: float) -> None:
    for outcome in (Errored(BOOM), Errored(BOOM, delay=asked), Snoozed(asked)):
        change = after(claimed(), outcome, fixed(asked))
        assert isinstance(change, Back)
        assert change.delay == stored


def test_a_hook_has_ten_tries() -> None:
    """Marked, `finishing` is 1; each claim adds 1."""
    assert [hook_is_spent(claimed(finishing=1 + number)) for number in (1, HOOK_TRIES, HOOK_TRIES + 1)] == [
        False,
        False,
        True,
    ]


def test_a_failure_keeps_what_it_is_told() -> None:
    assert failure(2, "boom", worker="w") == {"attempt": 2, "error": "boom", "worker": "w"}


def test_the_ways_back_are_numbered_as_in_the_statements() -> None:
    said = [Way.RETRY, Way.SNOOZE, Way.RELEASE, Way.FINISH, Way.POLL]
    assert list(map(int, said)) == [1, 2, 3, 4, 5]
    assert set(Way) - set(said) == {Way.SUBMITTED}  # of which no statement is told
