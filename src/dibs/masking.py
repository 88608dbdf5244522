"""What nobody may see: fields of payloads and results that are shown as stars, by their names, on every surface."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

HIDDEN = "***"


def masked(value: Any, names: Collection[str]) -> Any:
    """The same data with the values of these fields hidden, however deep; names in lower case, theirs in any.

    >>> masked({"user": "ada", "Password": "x", "more": [{"password": 1}]}, {"password"})
    {'user': 'ada', 'Password': '***', 'more': [{'password': '***'}]}
    """
    if not names:
        return value
    if isinstance(value, dict):
        return {key: HIDDEN if key.lower() in names else masked(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, names) for item in value]
    return value
