"""A declared function and its options, and the calls that become jobs. No I/O: the app adds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

from dibs.errors import InvalidOption, InvalidPayload
from dibs.job import MAX_TAGS, Claimed, NewJob, checked_moment, checked_name, checked_number
from dibs.payload import MAX_BYTES, Signature, encode
from dibs.retry import MAX_DELAY, Policy, policy

MAX_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """What can be said for a task, and again for a single job with `using`."""

    queue: str = "default"
    priority: int = 5
    max_attempts: int = 3
    delay: float = 0.0
    run_at: datetime | None = None
    unique_key: str | None = None
    unique_for: float | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_name("queue", self.queue)
        checked_number("priority", self.priority, 0, 9)
        checked_number("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        checked_number("delay", self.delay, 0, MAX_DELAY, whole=False)
        if self.run_at is not None:
            checked_moment("run_at", self.run_at)
            if self.delay:
                raise InvalidOption("delay", "say either delay or run_at, not both")
        if self.unique_key is not None:
            checked_name("unique_key", self.unique_key)
        if self.unique_for is not None:
            if self.unique_key is None:
                raise InvalidOption("unique_for", "needs a unique_key")
            checked_number("unique_for", self.unique_for, 0, MAX_DELAY, whole=False)
        if len(self.tags) > MAX_TAGS:
            raise InvalidOption("tags", f"has {len(self.tags)}, and {MAX_TAGS} are allowed")
        for tag in self.tags:
            checked_name("tags", tag)

    def but(self, **changes: Any) -> Options:
        """The same with some changes, checked again."""
        for name in ("delay", "unique_for"):
            if isinstance(changes.get(name), timedelta):
                changes[name] = changes[name].total_seconds()
        if changes.get("run_at") is not None:
            changes.setdefault("delay", 0.0)
        elif changes.get("delay"):
            changes.setdefault("run_at", None)
        for name in changes.keys() - {field.name for field in fields(Options)}:
            known = ", ".join(field.name for field in fields(Options))
            raise InvalidOption(name, f"there is no such option; there are {known}")
        if "tags" in changes:
            changes["tags"] = _texts("tags", changes["tags"])
        return replace(self, **changes)


def _texts(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InvalidOption(option, f"must be a list of texts, not {texts!r}")
    return tuple(texts)


def _function(option: str, function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if function is not None and not callable(function):
        raise InvalidOption(option, f"must be a function, not {function!r}")
    return function


def _exceptions(kinds: Sequence[type[BaseException]] | None) -> tuple[type[BaseException], ...] | None:
    if kinds is None:
        return None
    listed: tuple[Any, ...] = (kinds,) if isinstance(kinds, type) else tuple(kinds)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in listed):
        raise InvalidOption("retry_on", f"must be a list of exception classes, not {kinds!r}")
    return listed


def default_name(function: Callable[..., Any]) -> str:
    """`module.function`; a program that is run as a script is named like the module that it would be imported as."""
    module = function.__module__
    if module == "__main__":
        module = PurePath(inspect.getfile(function)).stem
    return f"{module}.{function.__qualname__}"


def new_job(type: str, payload: bytes, options: Options, *, submits: bool = False) -> NewJob:
    """A job of a task by its name, with a payload that was encoded already."""
    return NewJob(
        type=type,
        payload=payload,
        queue=options.queue,
        priority=options.priority,
        max_attempts=options.max_attempts,
        delay=options.delay,
        run_at=options.run_at,
        tags=encode(list(options.tags), what="tags") if options.tags else None,
        unique_key=options.unique_key,
        unique_for=options.unique_for,
        submits=submits,
    )


class AlreadyDone:
    """The answer of a `reconcile` hook, or of a provider: the work is done, this is its result, and that is what it was
    charged for. Public as `dibs.Done`.

    >>> AlreadyDone("a summary", usage={"tokens": 812}).usage
    {'tokens': 812}
    """

    def __init__(self, result: Any = None, *, usage: Any = None) -> None:
        self.result, self.usage = result, usage


class Declared:
    """A function that the app knows by name, and how to run and store it."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        options: Options | None = None,
        retry: Policy | float | Sequence[float] | None = None,
        retry_on: Sequence[type[BaseException]] | None = None,
        timeout: float | None = None,
        process: bool = False,
        keep: int = 7,
        on_failure: Callable[..., Any] | None = None,
        reconcile: Callable[..., Any] | None = None,
        aliases: Sequence[str] = (),
        max_payload: int = MAX_BYTES,
    ) -> None:
        self.function = function
        self.name = checked_name("name", name or default_name(function))
        self.options = options or Options()
        self.retry, self.retry_on = policy(retry), _exceptions(retry_on)
        self.on_failure, self.reconcile = _function("on_failure", on_failure), _function("reconcile", reconcile)
        self.aliases = tuple(checked_name("aliases", alias) for alias in _texts("aliases", aliases))
        self.timeout = None if timeout is None else checked_number("timeout", timeout, 0.001, 86400 * 30, whole=False)
        self.process = process
        if process and "<" in function.__qualname__:
            raise InvalidOption(
                "process", f"needs a function at the top level of a module; {function.__qualname__} is inside another"
            )
        self.keep = int(checked_number("keep", keep, 0, 3650))
        self.max_payload = max_payload
        self.signature = Signature(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.is_simple = self.is_async and self.timeout is None and not process
        self._parameters = inspect.signature(function)

    @property
    def place(self) -> tuple[str, str]:
        """Where another process finds it: a module, and a name in that."""
        return self.function.__module__, self.function.__qualname__

    takes_rows = False  # of an adopted table, and nothing else
    submits = False  # its jobs are handed to a provider

    @property
    def finishes(self) -> bool:
        """A job that has failed for good is claimed once more, to be finished."""
        return self.on_failure is not None

    def row_key(self, job: Claimed) -> Sequence[Any] | None:
        """What names the row that a job stands for, if it stands for one."""
        return None

    def label(self, job: Claimed) -> int | str:
        """What a job is called in the log."""
        return job.id

    def limit(self, arguments: dict[str, Any]) -> float | None:
        """Seconds that a job with these arguments may take."""
        return self.timeout

    def new_job(self, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """A call as a job, checked."""
        arguments = self._bind(args, kwargs) if args else kwargs
        return new_job(self.name, self.signature.dump(arguments, self.max_payload), options, submits=self.submits)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._parameters.bind_partial(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidPayload(f"{self.function.__qualname__}: {error}") from None
