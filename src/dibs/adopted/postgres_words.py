"""How names, words and values are written in statements for PostgreSQL."""

from __future__ import annotations

import re

from dibs.adopted.mapping import Word

PRECISION = re.compile(r"\(\d+(,-?\d+)?\)")


def quoted(name: str) -> str:
    """An identifier; psycopg reads a % twice.

    >>> quoted('a"b%')
    '"a""b%%"'
    """
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def literal(word: Word) -> str:
    """A constant, whatever the server thinks of backslashes.

    >>> literal("it's"), literal(7), literal("back\\\\slash")
    ("'it''s'", '7', "E'back\\\\\\\\slash'")
    """
    if isinstance(word, int):
        return str(word)
    text = word.replace("'", "''").replace("%", "%%")
    return "E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else f"'{text}'"


def as_text(value: str, kind: str) -> str:
    """A value as a text that can be read again, whatever the session thinks of zones, dates and bytes.

    >>> as_text("t.id", "bigint"), as_text("t.day", "date")
    ('t.id::text', "(to_json(t.day) #>> '{}')")
    """
    match PRECISION.sub("", kind):
        case "date" | "timestamp" | "timestamp without time zone":
            return f"(to_json({value}) #>> '{{}}')"
        case "timestamp with time zone":
            moment = f"to_json({value} at time zone 'UTC') #>> '{{}}'"
            return f"(case when isfinite({value}) then ({moment}) || '+00' else {value}::text end)"
        case "bytea":
            return f"(E'\\\\x' || encode({value}, 'hex'))"
        case "text" | "character varying" | "character" | "name" | "citext":
            return f'({value}::text collate "C")'
        case _:
            return f"{value}::text"


def escaped(kind: str) -> str:
    """As the catalogue writes it; it may have quotes and per cent signs of its own."""
    return kind.replace("%", "%%")
