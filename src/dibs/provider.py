"""A task that hands its work to a provider who charges for it: what its class must say, and what it may answer.

Pure. How it is carried out, so that nothing is submitted twice, is in worker/provider.py.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dibs.errors import InvalidOption
from dibs.job import checked_number
from dibs.payload import Signature
from dibs.retry import MAX_DELAY, exponential
from dibs.task import AlreadyDone as Done
from dibs.task import Declared, default_name

AFTER_CRASH = ("resubmit", "hold")
LONGEST_ID = 16 * 1024  # characters of a provider's task id
TIMEOUT = 60.0  # seconds that one call of the provider may take
KEY = "key"


class Waiting:
    """The answer of `poll`: not yet. `after`: ask again in so many seconds, instead of `poll_every`.

    >>> Waiting(after=120).after
    120
    """

    def __init__(self, after: float | None = None) -> None:
        self.after = None if after is None else checked_number("after", after, 0, MAX_DELAY, whole=False)


class Rejected:
    """The provider will not do it, or could not. The job becomes FAILED; with `retry` it is submitted anew, under a new
    key, while it has attempts left.

    >>> str(Rejected("the text is too long"))
    'the text is too long'
    """

    def __init__(self, reason: str, *, retry: bool = False, usage: Any = None) -> None:
        self.reason, self.retry, self.usage = str(reason), retry, usage

    def __str__(self) -> str:
        return self.reason


Answer: TypeAlias = Done | Waiting | Rejected


class ProviderTask(Declared):
    """A class with `submit`, and how to learn what became of what it submitted."""

    submits = True

    def __init__(
        self,
        kind: type,
        *,
        poll_every: float = 30.0,
        give_up_after: float = 86400.0,
        after_crash: str | None = None,
        name: str | None = None,
        timeout: float | None = TIMEOUT,
        retry: Any = None,
        **more: Any,
    ) -> None:
        for option in more.keys() & {"process", "reconcile"}:
            raise InvalidOption(option, "is for tasks; a provider's class has methods of its own")
        if not isinstance(kind, type):
            raise InvalidOption("provider_task", f"decorates a class with a method submit, not {kind!r}")
        self.provider = _instance(kind)
        submit = _method(self.provider, "submit")
        if submit is None:
            raise InvalidOption("submit", f"{kind.__qualname__} has no such method; it hands the work to the provider")
        super().__init__(
            submit,
            name=name or default_name(kind),
            timeout=timeout,
            retry=exponential(10, factor=4) if retry is None else retry,
            **more,
        )
        self.signature = Signature(submit, without=(KEY,))
        self.takes_key = KEY in inspect.signature(submit).parameters
        self.reconciles = _method(self.provider, "reconcile")
        self.polls, self.polls_many = _method(self.provider, "poll"), _method(self.provider, "poll_many")
        self.cancels, self.reads = _method(self.provider, "cancel"), _method(self.provider, "callback")
        self.poll_every = checked_number("poll_every", poll_every, 0.01, MAX_DELAY, whole=False)
        self.give_up_after = checked_number("give_up_after", give_up_after, 0.01, MAX_DELAY, whole=False)
        self.after_crash = _checked_choice(kind, after_crash, reconciles=self.reconciles is not None)
        self.is_simple = False

    @property
    def finishes(self) -> bool:
        """When all has failed, the provider is asked once more."""
        return self.on_failure is not None or self.reconciles is not None

    @property
    def asks(self) -> bool:
        """There is somebody to ask what became of it; else a callback tells."""
        return self.polls is not None or self.polls_many is not None


def _instance(kind: type) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise InvalidOption(
            "provider_task", f"{kind.__qualname__} must be made without arguments, and cannot: {error}"
        ) from None


def _method(provider: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(provider, name, None)
    if found is not None and not callable(found):
        raise InvalidOption(name, f"of {type(provider).__qualname__} must be a method, not {found!r}")
    return found


def _checked_choice(kind: type, after_crash: str | None, *, reconciles: bool) -> str | None:
    if after_crash is not None and after_crash not in AFTER_CRASH:
        raise InvalidOption("after_crash", f"must be one of {', '.join(AFTER_CRASH)}, not {after_crash!r}")
    if after_crash is None and not reconciles:
        raise InvalidOption(
            "after_crash",
            f"{kind.__qualname__} has no method reconcile to ask the provider after a crash, so say what is to happen: "
            "'resubmit' (the provider honours the key, and charges once) or 'hold' (FAILED, for a person to decide)",
        )
    return after_crash


def checked_task_id(answer: Any) -> str:
    """What the provider calls it: a text, not empty, that both databases can store."""
    if not isinstance(answer, str) or not answer:
        raise TypeError(f"submit must return the provider's task id, a text that is not empty, not {_short(answer)}")
    if len(answer) > LONGEST_ID:
        raise ValueError(f"the provider's task id has {len(answer):,} characters, and {LONGEST_ID:,} are allowed")
    if "\x00" in answer:
        raise ValueError("the provider's task id has the character \\u0000 in it, which databases cannot store")
    answer.encode()  # raises for lone surrogates
    return answer


def digest(task_id: str) -> str:
    """By which the database refuses the same id twice, however long it is."""
    return hashlib.sha256(task_id.encode()).hexdigest()


def answered(body: Any) -> Answer:
    """What a callback says, for a class without a method `callback`: `error`, or `result` and `usage`; else not yet.

    >>> answered({"result": 7, "usage": {"tokens": 3}}).usage, str(answered({"error": "too long"}))
    ({'tokens': 3}, 'too long')
    """
    if body.get("error") is not None:
        return Rejected(str(body["error"]), usage=body.get("usage"))
    return Done(body["result"], usage=body.get("usage")) if "result" in body else Waiting()


def by_id(answers: Any, ids: Sequence[str]) -> dict[str, Any]:
    """What `poll_many` said: a dict by id, or a list in the order of the ids."""
    if isinstance(answers, dict):
        return answers
    if isinstance(answers, list | tuple) and len(answers) == len(ids):
        return dict(zip(ids, answers, strict=True))
    raise TypeError(f"poll_many must return a dict by id, or as many answers as ids, not {_short(answers)}")


def _short(value: Any) -> str:
    return repr(value)[:100]
