"""Settings: what the app was told, else the environment, else the defaults. The environment is read here only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dibs.errors import InvalidOption
from dibs.job import checked_number
from dibs.payload import MAX_BYTES

HARMLESS = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME")
DEFAULT_URL = "sqlite:///dibs.db"


@dataclass(frozen=True, slots=True)
class Settings:
    """How an app behaves; right for most as it is.

    >>> Settings().lease, Settings().beat
    (15.0, 3.0)
    """

    lease: float = 15.0  # seconds without a beat until a worker is dead
    beat: float = 3.0  # seconds between beats
    grace: float = 25.0  # seconds that running jobs have to finish when a worker stops
    concurrency: int = 10  # jobs that a worker runs at once
    prefetch: int | None = None  # jobs that it holds unstarted; None adapts
    look: float = 5.0  # seconds between safety looks of an idle worker
    events: bool = True  # workers tell of every change at once; else watchers see it at their next look
    max_payload: int = MAX_BYTES  # bytes of JSON
    mask: Sequence[str] = ("password", "passwd", "secret", "authorization", "api_key")  # fields that nobody is shown
    deadline: float = 30.0  # seconds to wait for each answer; and until an operation that failed is begun no more
    public_url: str | None = None  # under which providers reach the server, for callbacks
    schema: str = "dibs"  # on PostgreSQL
    listen_url: str | None = None  # past the pooler, for LISTEN
    sqlite: Any = None  # another module than the standard library's sqlite3

    def __post_init__(self) -> None:
        checked_number("beat", self.beat, 0.05, 3600, whole=False)
        checked_number("lease", self.lease, 4 * self.beat, 86400, whole=False)
        checked_number("grace", self.grace, 0, 86400, whole=False)
        checked_number("concurrency", self.concurrency, 1, 10_000)
        if self.prefetch is not None:
            checked_number("prefetch", self.prefetch, 0, 10_000)
        checked_number("look", self.look, 0.05, 3600, whole=False)
        checked_number("max_payload", self.max_payload, 1, 64 * MAX_BYTES)
        checked_number("deadline", self.deadline, 0.1, 3600, whole=False)
        if isinstance(self.mask, str) or not all(isinstance(name, str) for name in self.mask):
            raise InvalidOption("mask", f"must be a list of names of fields, not {self.mask!r}")

    @property
    def masked(self) -> frozenset[str]:
        """Those names in lower case: a field is hidden however its name is written."""
        return frozenset(name.lower() for name in self.mask)


def database_url(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The URL that was given, else DIBS_URL, else DATABASE_URL, else a file here.

    >>> database_url(None, {})
    'sqlite:///dibs.db'
    """
    return given or environment.get("DIBS_URL") or environment.get("DATABASE_URL") or DEFAULT_URL


def app_path(given: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The app that a command works on: `module:attribute` or a database URL, else DIBS_APP."""
    return given or environment.get("DIBS_APP")


def environment_with(name: str, value: str) -> dict[str, str]:
    """The environment of a process that we start."""
    return {**os.environ, name: value}


def environment_of_command(more: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of a program that a job runs: what programs need, and what the job says; no URL or secret of ours."""
    return {**{name: environment[name] for name in HARMLESS if name in environment}, **more}


def taken_from_environment(name: str) -> str | None:
    """What whoever started us put there, for us alone: what we start ourselves does not see it."""
    return os.environ.pop(name, None)
