"""Retry policies: how long to wait before the next attempt. Pure; chance is an argument.

>>> fixed(30)(4)
30
>>> listed([1, 10, 60])(9)
60
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dibs.errors import InvalidOption

Policy: TypeAlias = Callable[[int], float]
"""From the number of the attempt that failed (1, 2, ...) to the seconds before the next."""

FIRST, FACTOR, LONGEST = 1.0, 2.0, 3600.0
MAX_DELAY = 366 * 86400.0


class RetryAfter(Exception):
    """Raised by a task: this attempt failed, try again after so many seconds.

    >>> raise RetryAfter(30, "the service asks for patience")
    Traceback (most recent call last):
    ...
    dibs.retry.RetryAfter: the service asks for patience
    """

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = seconds
        super().__init__(message or f"try again after {seconds:g} s")


class Permanent(Exception):
    """Raised by a task: it failed, and another attempt would not help.

    >>> raise Permanent("the customer is gone")
    Traceback (most recent call last):
    ...
    dibs.retry.Permanent: the customer is gone
    """


def exponential(
    first: float = FIRST,
    *,
    factor: float = FACTOR,
    longest: float = LONGEST,
    chance: Callable[[], float] = random.random,
) -> Policy:
    """Full jitter: anywhere between 0 and first * factor ** (attempt - 1), so that a crowd does not come back at once.

    >>> exponential(2, chance=lambda: 1.0)(3)
    8.0
    """

    def delay(attempt: int) -> float:
        try:
            return chance() * min(first * factor ** (attempt - 1), longest)
        except OverflowError:
            return chance() * longest

    return delay


def fixed(seconds: float) -> Policy:
    """Always the same pause."""
    return lambda attempt: seconds


def listed(seconds: Sequence[float]) -> Policy:
    """The first pause after the first failure, and so on; the last one goes on."""
    pauses = tuple(seconds)
    if not pauses:
        raise InvalidOption("retry", "a list of pauses may not be empty")
    return lambda attempt: pauses[min(attempt, len(pauses)) - 1]


def policy(choice: Policy | float | Sequence[float] | None) -> Policy:
    """What a task says: nothing (exponential), a number, a list of numbers, or a function of the attempt.

    >>> policy([5, 50])(2)
    50
    """
    match choice:
        case None:
            return exponential()
        case int() | float():
            return fixed(choice)
        case _ if callable(choice):
            return choice
        case str():
            raise InvalidOption("retry", f"must be a number, a list of numbers or a function, not {choice!r}")
        case _:
            return listed(choice)


def pause(choice: Policy, tries: int) -> tuple[float, BaseException | None]:
    """What a policy says, and what it raised instead: it is user code too, and where it fails, its job goes on.

    >>> pause(lambda attempt: 1 / 0, 3)
    (4.0, ZeroDivisionError('division by zero'))
    """
    try:
        return bounded(choice(tries)), None
    except BaseException as error:  # sys.exit included
        return exponential(chance=lambda: 1.0)(tries), error


def bounded(seconds: float) -> float:
    """A policy may answer anything; what is stored is between now and a year."""
    return float(min(max(seconds, 0.0), MAX_DELAY)) if seconds == seconds else 0.0
