"""How names, words and values are written in statements for PostgreSQL."""

from __future__ import annotations

import re

from dibs.adopted.mapping import Word

PRECISION = re.compile(r"\(\d+(,-?\d+)?\)")
NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
DIGITS = 10  # of seconds since 1970


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


def holds_seconds(kind: str) -> bool:
    """Whether a number of this type may be so many seconds since 1970 as there are by now.

    >>> [holds_seconds(kind) for kind in ("smallint", "numeric(6,2)", "numeric(12,2)", "bigint")]
    [False, False, True, True]
    """
    if found := NUMERIC.fullmatch(kind):
        return int(found[1]) - int(found[2]) >= DIGITS
    return kind != "smallint"
