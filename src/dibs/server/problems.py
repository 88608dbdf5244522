"""Errors on the wire, all of one shape: a code for programs, a sentence for people, and the field if there is one."""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response

from dibs import errors
from dibs.errors import DibsError

log = logging.getLogger("dibs")

WAIT = "2"  # seconds, for Retry-After


class Problem(msgspec.Struct, omit_defaults=True):
    """An error as RFC 9457 shapes it, with our code and field."""

    title: str
    status: int
    code: str
    detail: str
    field: str | None = None


class Refusal(Exception):
    """A request that is not carried out, and why."""

    def __init__(self, status: int, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(TITLES[status], status, code, detail, field)


TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    411: "Length required",
    413: "Too large",
    415: "Not JSON",
    421: "Wrong host",
    422: "Not valid",
    500: "Internal error",
    503: "Database unavailable",
}

# The first class that fits. What is not here is an error of ours, or of the database.
KINDS: list[tuple[type[DibsError], int, str]] = [
    (errors.JobNotFound, 404, "job_not_found"),
    (errors.BatchNotFound, 404, "batch_not_found"),
    (errors.PayloadTooLarge, 413, "payload_too_large"),
    (errors.InvalidPayload, 422, "invalid_payload"),
    (errors.InvalidOption, 422, "invalid_option"),
    (errors.UnknownTask, 422, "unknown_task"),
    (errors.NotRetryable, 409, "not_retryable"),
    (errors.UniqueKeyHeld, 409, "unique_key_held"),
    (errors.LeaseLost, 409, "lease_lost"),
    (errors.OutcomeUnknown, 503, "outcome_unknown"),
    (errors.Refused, 422, "refused_by_database"),
    (errors.DatabaseError, 503, "database_unavailable"),
]
FIELDS = {"payload_too_large": "payload", "invalid_payload": "payload", "unknown_task": "type"}
PRIVATE = {"database_unavailable": "The database cannot be used now. Try again in a moment."}


def problem_of(error: Exception) -> Problem:
    """What a client is told of an error. Details of the database stay in the log."""
    if isinstance(error, Refusal):
        return error.problem
    for kind, status, code in KINDS:
        if isinstance(error, kind):
            field = camel(error.option) if isinstance(error, errors.InvalidOption) else FIELDS.get(code)
            if code in PRIVATE:
                log.warning("A request failed: %s", error)
            return Problem(TITLES[status], status, code, PRIVATE.get(code, str(error)), field)
    log.error("A request failed", exc_info=error)
    return Problem(TITLES[500], 500, "internal_error", "Something is wrong with this server; its log says what.")


def answer(problem: Problem) -> Response:
    """The problem as a response."""
    headers = {"Retry-After": WAIT} if problem.status == 503 else {}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(problem), problem.status, headers=headers, media_type="application/problem+json"
    )


def invalid(error: msgspec.MsgspecError) -> Refusal:
    """A body that is no JSON, or not of the right shape; the place as msgspec names it."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return Refusal(400, "malformed_json", f"The body is not JSON: {text}.")
    said, _, place = text.partition(" - at `$")
    field = place.removesuffix("`").lstrip(".") or None
    if "`" in said and field is None:
        field = said.split("`")[1] if said.startswith(("Object missing", "Object contains unknown")) else None
    return Refusal(422, "invalid_body", f"{said}.", field)


def camel(name: str) -> str:
    """A name as it is on the wire.

    >>> camel("max_attempts")
    'maxAttempts'
    """
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def whole_number(text: str, field: str, most: int, *, least: int = 0) -> int:
    """A number in a path or a query."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
        raise Refusal(
            422, "invalid_option", f"{field}: must be a whole number from {least} to {most:,}, not {text[:50]!r}", field
        )
    return int(text)
