"""Rows that come with a claim and cannot be read, as JSON that is none: each is to say so itself, and keep no other."""

from __future__ import annotations

import re

import msgspec

from dibs.job import Claimed
from dibs.operations.adopted import Taken, decode_taken, taken_of

KEY = re.compile(rb'"key"\s*:')


def legible(job: Claimed) -> tuple[Claimed, Taken]:
    """A job, and what came with it. A `json` column may hold what no reader takes: such a row says so when it runs."""
    try:
        return job, taken_of(job)
    except RecursionError:
        problem = "a column of it is nested too deeply"
    except msgspec.DecodeError as error:
        problem = f"a column of it is JSON that is not valid: {error}"
    taken = decode_taken(b"{" + _after_the_row(job.payload))
    taken.document, taken.problem = msgspec.Raw(b"{}"), problem
    return job._replace(payload=msgspec.json.encode(taken)), taken


def _after_the_row(payload: bytes | str | None) -> bytes:
    """From the key on, of which the rest is made by us. In a text a quote has a backslash before it, so that what looks
    like the name of a field is one; and no later field is called so.

    >>> _after_the_row('{"row" : {"key":["x"],"a":"\\\\ud800, \\\\"key\\\\":"}, "key" : ["7"], "done" : false}')
    b'"key" : ["7"], "done" : false}'
    """
    text = payload.encode() if isinstance(payload, str) else payload or b""
    return text[[found.start() for found in KEY.finditer(text)][-1] :]
