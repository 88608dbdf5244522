"""Conditions of indexes, compared as texts: whether one holds for the rows that have a certain word, and for no fewer.

The database has written the condition anew: with parentheses and casts of its own, which say nothing here.
"""

from __future__ import annotations

import re

from dibs.adopted.mapping import Word

NAME, TEXT = r'"(?:[^"]|"")*"', r"E?'(?:[^']|'')*'"
CAST = rf"::(?:{NAME}|\w+)(?:\.(?:{NAME}|\w+))?(?: varying| precision)?(?:\(\d+(?:,\d+)?\))?"
TOKEN = re.compile(rf"(?P<nothing>--[^\n]*|{CAST}|[()])|(?P<text>{TEXT})|(?P<name>{NAME})|\w+|[^\s\w]")


def holds(where: str, status: str, word: Word, meant: str | None = None, *, any_case: bool = False) -> bool:
    """Whether an index with this condition has the rows with this word, or those of them that are meant at all.

    >>> holds("((status)::text = 'queued'::text)", "status", "queued"), holds("(state = '-1'::integer)", "state", -1)
    (True, True)
    >>> holds("((status = 'queued'::text) AND (tenant = 7))", "status", "queued")
    False
    >>> holds("((status = 'queued'::text) AND (gone IS NULL))", "status", "queued", meant="gone is null")
    True
    """
    found = _tokens(where, any_case)
    name = status.lower() if any_case else status
    rest = [] if meant is None else _tokens(meant, any_case)
    says = [[name, "=", *each] for each in _written(word)]
    return any(found in (each, [*each, "and", *rest], [*rest, "and", *each]) for each in says)


def _written(word: Word) -> list[list[str]]:
    """The ways to write it."""
    if isinstance(word, str):
        return [["'" + word.replace("'", "''") + "'"]]
    return [_tokens(str(word), any_case=False), [f"'{word}'"]]


def _tokens(text: str, any_case: bool) -> list[str]:
    """Its names, words and signs, however they are quoted, put in parentheses and cast."""
    found = []
    for token in TOKEN.finditer(text):
        if token["text"]:
            found.append(token["text"])
        elif token["name"]:
            name = token["name"][1:-1].replace('""', '"')
            found.append(name.lower() if any_case else name)
        elif not token["nothing"]:
            found.append(token[0].lower())
    return found
