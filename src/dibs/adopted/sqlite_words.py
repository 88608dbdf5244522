"""How names and words are written in statements for SQLite."""

from __future__ import annotations

from dibs.adopted.mapping import Word


def quoted(name: str) -> str:
    """An identifier.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def literal(word: Word) -> str:
    """A constant.

    >>> literal("it's"), literal(7)
    ("'it''s'", '7')
    """
    return str(word) if isinstance(word, int) else "'" + word.replace("'", "''") + "'"
