"""Retry policies: how long to wait before the next attempt."""

import pytest

from dibs.errors import InvalidOption
from dibs.retry import FACTOR, FIRST, LONGEST, MAX_DELAY, bounded, exponential, fixed, listed, policy


def test_exponential_doubles_up_to_its_longest() -> None:
    delay = exponential(1, longest=10, chance=lambda: 1.0)
    assert [delay(attempt) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_exponential_has_full_jitter() -> None:
    delay = exponential(8)
    waits = [delay(1) for _ in range(200)]
    assert all(0 <= wait <= 8 for wait in waits)
    assert min(waits) < 2
    assert max(waits) > 6


def test_exponential_survives_any_number_of_attempts() -> None:
    assert exponential(chance=lambda: 1.0)(10**9) == LONGEST


def test_exponential_survives_any_factor() -> None:
    assert exponential(factor=1e6, chance=lambda: 1.0)(100) == LONGEST


def test_fixed_is_always_the_same() -> None:
    assert [fixed(30)(attempt) for attempt in (1, 2, 99)] == [30, 30, 30]


def test_a_list_goes_on_with_its_last() -> None:
    assert [listed([1, 10, 60])(attempt) for attempt in (1, 2, 3, 4, 99)] == [1, 10, 60, 60, 60]


def test_a_list_is_copied() -> None:
    pauses = [1.0, 2.0]
    delay = listed(pauses)
    pauses.clear()
    assert delay(2) == 2.0


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InvalidOption, match="retry"):
        listed([])


def test_a_choice_becomes_a_policy() -> None:
    assert policy(5)(3) == 5
    assert policy(0.5)(3) == 0.5
    assert policy([5, 50])(2) == 50
    assert policy((5, 50))(1) == 5
    assert policy(lambda attempt: attempt * 10)(3) == 30


def test_no_choice_is_exponential() -> None:
    waits = [policy(None)(3) for _ in range(100)]
    assert len(set(waits)) > 90
    assert max(waits) <= FIRST * FACTOR**2


@pytest.mark.parametrize(
    "seconds, stored",
    [
        (0, 0.0),
        (1.5, 1.5),
        (-1, 0.0),
        (float("inf"), MAX_DELAY),
        (float("-inf"), 0.0),
        (float("nan"), 0.0),
        (1e300, MAX_DELAY),
    ],
)
def test_what_is_stored_is_bounded(seconds: float, stored: float) -> None:
    assert bounded(seconds) == stored
