"""What a job is: states, leases, ranks, and limits of its options."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dibs.errors import InvalidOption
from dibs.job import (
    FINAL,
    LATEST,
    MAX_NAME,
    Claimed,
    Job,
    JobId,
    JobState,
    Lease,
    NewJob,
    checked_moment,
    checked_name,
    checked_number,
    rank,
)

# States


def test_a_state_is_its_word() -> None:
    assert JobState("RETRY") is JobState.RETRY
    assert JobState.RETRY == "RETRY"
    assert f"{JobState.RETRY}" == "RETRY"


def test_a_state_has_a_number() -> None:
    assert [state.code for state in JobState] == list(range(len(JobState)))


def test_three_states_are_final() -> None:
    assert {state for state in JobState if state.final} == FINAL == {"SUCCESSFUL", "FAILED", "CANCELLED"}


# Leases


def test_a_lease_travels_as_text() -> None:
    lease = Lease(JobId(7), 2**62 + 1)
    assert str(lease) == f"7.{2**62 + 1}"
    assert Lease.parse(str(lease)) == lease


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            ".",
            "7",
            "7.",
            ".7",
            "7.x",
            "x.7",
            "-7.1",
            "7.-1",
            "7.1.2",
            " 7.1",
            "7.1 ",
            "7,1",
            "7.1\n",
            "\u0667.\u0661",
            "².1",
            "7.0x1",
        ],
        pytest.param("9" * 5000 + ".1", id="endless"),
    ],
)
def test_what_is_no_lease_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Lease.parse(text)
    assert caught.value.option == "lease"


# Ranks


@pytest.mark.parametrize("priority, level", [(9, 0), (5, 4), (0, 9)])
def test_a_higher_priority_has_a_lower_rank(priority: int, level: int) -> None:
    assert rank(priority) == level
    assert rank(priority, last_attempt=True) == level + 10
    assert NewJob("task", priority=priority).rank == level


def test_a_job_of_one_attempt_is_on_its_last() -> None:
    assert NewJob("task", max_attempts=1).rank == 14
    assert NewJob("task", max_attempts=2).rank == 4


@pytest.mark.parametrize("number, suspect", [(4, False), (14, False), (20, True), (29, True)])
def test_a_suspect_is_known_by_its_rank(number: int, suspect: bool) -> None:
    job = Claimed(JobId(1), 7, "task", "default", None, 1, 3, number, None, 0, 0)
    assert job.suspect is suspect
    assert job.lease == Lease(JobId(1), 7)


def test_a_job_is_a_frozen_snapshot() -> None:
    job = Job(1, "task", "default", JobState.PENDING)
    with pytest.raises(AttributeError):
        job.state = JobState.FAILED  # type: ignore[misc]  # that is the point


# Names


@pytest.mark.parametrize("name", ["a", "x" * MAX_NAME, "naïve ☃ 𝄞", "a.b:c/d-e", 'it\'s "q" %s'])
def test_a_name_may_be_any_text(name: str) -> None:
    assert checked_name("queue", name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * (MAX_NAME + 1), "a\nb", "a\x00b", "\x7f", "\t", "\ud800", "a\udfff", None, 7, b"bytes", ["a"]]
)
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^queue: ") as caught:
        checked_name("queue", name)
    assert caught.value.option == "queue"
    assert len(str(caught.value)) < 400


# Numbers


@pytest.mark.parametrize("value", [0, 5, 9])
def test_a_number_in_its_range_is_fine(value: int) -> None:
    assert checked_number("priority", value, 0, 9) == value


@pytest.mark.parametrize(
    "value",
    [
        *[-1, 10, 5.0, True, "5", None, float("nan"), 2**64, -(2**64)],
        pytest.param(10**400, id="endless"),
    ],
)
def test_a_bad_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^priority: "):
        checked_number("priority", value, 0, 9)


@pytest.mark.parametrize("value", [-0.1, 9.1, float("nan"), float("inf"), float("-inf"), "5", None, False, 1j])
def test_a_bad_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^delay: "):
        checked_number("delay", value, 0, 9, whole=False)


def test_a_number_may_have_a_fraction() -> None:
    assert checked_number("delay", 0.5, 0, 9, whole=False) == 0.5


# Times


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=-11))),
        LATEST,
    ],
)
def test_a_time_with_a_zone_is_fine(moment: datetime) -> None:
    assert checked_moment("run_at", moment) == moment


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 1, 1),  # no zone
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        1_700_000_000,
        "2024-01-01",
        None,
    ],
)
def test_a_bad_time_is_refused(moment: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^run_at: "):
        checked_moment("run_at", moment)
