"""A row of an adopted table, as the function that works on it sees it."""

from __future__ import annotations

from typing import Any

from dibs.context import current_job


class Row(dict[str, Any]):
    """The columns of a row by name, as they were when it was claimed.

    >>> row = Row(id=7, title="cat")
    >>> row["title"]
    'cat'
    """

    def transaction(self, session: Any = None) -> Any:
        """As `current_job().transaction()`: what it writes and the row's last state commit together, or neither."""
        return current_job().transaction(session)
