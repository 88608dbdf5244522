"""Tokens: who may ask a server for what. Access tokens are random, and only their hash is stored; tokens to watch one
job are signed, expire by themselves, and are stored nowhere; so are the addresses at which providers call back."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from dibs.errors import InvalidOption
from dibs.job import BIGGEST, checked_number

SCOPES = ("read", "enqueue", "work", "operate")
LONGEST = 86400 * 366  # seconds that a signed token may be good for
PREFIX, WATCH = "dibs_", "dibsw_"
CALLBACK = "dibsc_"
CALLBACKS = "callbacks"  # the name of the key that signs them
CALLED = re.compile(r"dibsc_([0-9]{1,19})_([0-9]{1,9})_([A-Za-z0-9_-]{43})")
SIGNED = re.compile(r"dibsw_([0-9]{1,19})_([0-9]{1,12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody may do: by scopes, or with one job alone."""

    scopes: frozenset[str] = frozenset()
    job: int | None = None

    def may(self, scope: str | None, job: int | None = None) -> bool:
        """Whether this is allowed; `job`: it concerns no other, and is only looked at.

        >>> Access(frozenset({"read"})).may("read"), Access(job=7).may("read", 7), Access(job=7).may("read", 8)
        (True, True, False)
        """
        if scope is None or scope in self.scopes:
            return True
        return scope == "read" and job is not None and job == self.job


NOBODY = Access()
EVERYBODY = Access(frozenset(SCOPES))


@dataclass(frozen=True, slots=True)
class Known:
    """An access token as it is stored."""

    name: str
    hash: str
    scopes: frozenset[str]


def new_token() -> str:
    """A random access token; told once, to whoever made it."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(token: str) -> str:
    """What is stored of it. A random text of this length needs no salt."""
    return hashlib.sha256(token.encode()).hexdigest()


def checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Some of the scopes that there are."""
    found = frozenset(scopes)
    if not found or found - set(SCOPES):
        unknown = ", ".join(sorted(found - set(SCOPES))) or "none was given"
        raise InvalidOption("scopes", f"are some of {', '.join(SCOPES)}; {unknown}")
    return found


def recognized(token: str, known: Iterable[Known]) -> Access:
    """What the bearer may do. All are compared, each in the same time, whichever it is."""
    mine, access = hashed(token), NOBODY
    for each in known:
        if hmac.compare_digest(mine, each.hash):
            access = Access(each.scopes)
    return access


def signed(job: int, until: int, key: bytes) -> str:
    """A token to watch one job until then, in seconds since 1970.

    >>> signed(7, 1893456000, b"key")[:24]
    'dibsw_7_1893456000_8AYHA'
    """
    said = f"{WATCH}{job}_{until}"
    return f"{said}_{_signature(said, key)}"


def until(expires: float, now: float) -> int:
    """When a token ends that is to be good for so many seconds."""
    return math.ceil(now + checked_number("expires", expires, 1, LONGEST, whole=False))


def watched(token: str, key: bytes, now: float) -> int | None:
    """The job that a signed token is for; None if it is not ours, or past its time."""
    found = SIGNED.fullmatch(token)
    if found is None or int(found[1]) > BIGGEST:
        return None
    genuine = hmac.compare_digest(_signature(f"{WATCH}{found[1]}_{found[2]}", key), found[3])
    return int(found[1]) if genuine and int(found[2]) > now else None


def callback_token(job: int, round: int, key: bytes) -> str:
    """The address at which a provider may say what became of one submission, once.

    >>> called(callback_token(7, 1, b"key"), b"key"), called(callback_token(7, 1, b"key"), b"another")
    ((7, 1), None)
    """
    said = f"{CALLBACK}{job}_{round}"
    return f"{said}_{_signature(said, key)}"


def called(token: str, key: bytes) -> tuple[int, int] | None:
    """The job and the submission that such an address is for; None if it is not ours."""
    found = CALLED.fullmatch(token)
    if found is None or int(found[1]) > BIGGEST:
        return None
    genuine = hmac.compare_digest(_signature(f"{CALLBACK}{found[1]}_{found[2]}", key), found[3])
    return (int(found[1]), int(found[2])) if genuine else None


def _signature(said: str, key: bytes) -> str:
    digest = hmac.digest(key, said.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
