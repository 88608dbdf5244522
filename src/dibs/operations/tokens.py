"""Tokens as they are stored: made, listed, revoked; and the key that signs those which are not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dibs.errors import InvalidOption
from dibs.job import checked_name
from dibs.operations.operation import Conversation, Statement, operation
from dibs.operations.rows import moment
from dibs.tokens import Known


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One line of `dibs tokens list`."""

    known: Known
    created_at: datetime | None


@operation(repeatable=False)
def add(token: Known) -> Conversation[None]:
    """Store it, under a name that no other has."""
    rows = yield Statement(
        "add_token", token=checked_name("name", token.name), hash=token.hash, scopes=" ".join(sorted(token.scopes))
    )
    if not rows:
        raise InvalidOption("name", f"{token.name!r} is the name of another token; revoke that one first")


@operation(reads=True)
def list_tokens() -> Conversation[list[TokenRow]]:
    """All of them."""
    rows = yield Statement("tokens")
    return [TokenRow(Known(row[0], row[1], frozenset(row[2].split())), moment(row[3])) for row in rows]


@operation()
def revoke(name: str) -> Conversation[bool]:
    """It is good for nothing from now on; False when there is none of that name."""
    rows = yield Statement("revoke_token", token=name)
    return bool(rows)


@operation()
def secret(name: str, proposal: str) -> Conversation[str]:
    """The secret of this name that all servers share; whoever asks first sets it."""
    rows = yield Statement("secret", secret=name, proposal=proposal)
    return str(rows[0][0])
