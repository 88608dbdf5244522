"""The state machine: what an outcome does to a job. Pure; the engines carry the changes out, fenced by the lease.

PENDING --claim--> RUNNING --Successful--> SUCCESSFUL
                      |----- Errored, attempts left ----> RETRY (due later; claimed like PENDING)
                      |----- Errored, none left or permanent ----> FAILED, or finishing first when there is a hook
                      |----- Snoozed ----> PENDING, attempt not used
                      |----- Released ----> as it was before the claim, attempt not used
                      '----- Unanswered ----> likewise, due later: it is asked again whether the work was done
Recovery (the owner died): RETRY as a suspect; when the attempts are used up: finishing.
A job that is handed to a provider shows as SUBMITTING while it is held. Accepted, it is PROCESSING and nobody's; it is
claimed again only to ask what became of it, which is no attempt: Polled ----> PROCESSING, else as above.
CANCELLED from any state that is not final. A person retries FAILED or CANCELLED: PENDING.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, assert_never

from dibs.job import Claimed, JobState
from dibs.retry import Policy, bounded, pause

HOOK_TRIES = RECONCILE_TRIES = 10
CANCELLING = 100  # so much in `finishing`: claimed once more only to become CANCELLED, where others have to be told


@dataclass(frozen=True, slots=True)
class Successful:
    """It ran; `result` is encoded JSON."""

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Errored:
    """It raised; `failure` is encoded JSON (attempt, error, traceback, worker, seconds)."""

    failure: bytes
    permanent: bool = False
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """It asked to run later; the attempt is not used."""

    delay: float


@dataclass(frozen=True, slots=True)
class Released:
    """Handed back unstarted, or stopped by us; the attempt is not used."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Its last attempt left no outcome, and whether the work was done could not be found out: still so, ask later."""

    failure: bytes
    delay: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last step of a job that was claimed to be finished: its hook ran (or has no more tries: `hook_error`)."""

    hook_error: str | None = None
    failure: bytes | None = None


@dataclass(frozen=True, slots=True)
class Polled:
    """The provider works on it still, or could not be asked (`failure`): ask again later."""

    delay: float
    failure: bytes | None = None


Outcome: TypeAlias = Successful | Errored | Snoozed | Released | Unanswered | Finished | Polled
"""What an attempt comes to, to be settled by the worker."""


class Way(IntEnum):
    """The ways back to waiting, as the statements number them."""

    RETRY = 1
    SNOOZE = 2
    RELEASE = 3
    FINISH = 4
    POLL = 5  # the provider works on it: ask later
    SUBMITTED = 6  # likewise, since just now; no statement is told so


class Done(NamedTuple):
    """The job becomes final."""

    state: JobState
    result: bytes | None = None
    failure: bytes | None = None
    hook_error: str | None = None


class Back(NamedTuple):
    """The job waits again."""

    way: Way
    delay: float = 0.0
    failure: bytes | None = None


Change: TypeAlias = Done | Back

SUCCESS = Done(JobState.SUCCESSFUL)  # what most jobs come to


@dataclass(frozen=True, slots=True)
class Committed:
    """It was settled already, to this, in a transaction of its own together with its effects."""

    change: Change


def after(job: Claimed, outcome: Outcome, policy: Policy, *, has_hook: bool = False) -> Change:
    """What becomes of a claimed job."""
    if isinstance(outcome, Successful):
        return SUCCESS if outcome.result is None else Done(JobState.SUCCESSFUL, result=outcome.result)
    match outcome:
        case Snoozed(delay):
            return Back(Way.SNOOZE, bounded(delay))
        case Released():
            return Back(Way.RELEASE)
        case Unanswered(failure, delay):
            return Back(Way.RELEASE, bounded(delay), failure)
        case Polled(delay, failure):
            return Back(Way.POLL, bounded(delay), failure)
        case Finished(hook_error, failure):
            return Done(JobState.FAILED, failure=failure, hook_error=hook_error)
        case Errored(failure, permanent, delay):
            if job.finishing > 0:  # the hook's error: what the job itself died of stays what is told of it
                tries = job.finishing - (CANCELLING if job.finishing >= CANCELLING else 1)
                return Back(Way.FINISH, pause(policy, tries)[0])
            if not permanent and job.attempts < job.max_attempts:
                return Back(Way.RETRY, pause(policy, job.attempts)[0] if delay is None else bounded(delay), failure)
            return Back(Way.FINISH, 0.0, failure) if has_hook else Done(JobState.FAILED, failure=failure)
        case other:
            assert_never(other)


def hook_is_spent(job: Claimed) -> bool:
    """Ten tries to run the hook of a failed job; then it becomes FAILED without."""
    return job.finishing - 1 > HOOK_TRIES


def failure(attempt: int, error: str, **more: Any) -> dict[str, Any]:
    """One entry of the last ten failures that stay with a job; the database adds when it began and ended."""
    return {"attempt": attempt, "error": error, **more}
