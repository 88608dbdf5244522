"""What PostgreSQL's errors become: which of them are tried again, and which are told at once."""

from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from dibs import errors
from dibs.engines.engine import Patience
from dibs.engines.postgres.errors import LEASE, Stopped, TimedOut, translate, translate_connect
from dibs.job import NewJob
from dibs.operations import jobs
from dibs.operations.operation import Operation
from tests.apps import POSTGRES

ONCE = jobs.add(NewJob("task"))
KEYED = jobs.add_keyed([NewJob("task", unique_key="k")])

# The server says so before anything was written.
NOT_DONE = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "57P03": "starting up",
    "25006": "a standby, read only",
    "53300": "too many connections",
    "57014": "cancelled, or a limit of the server",
    "55P03": "a lock was not to be had",
}
# Whether it was committed before is unknown.
NO_ANSWER = {
    "57P01": "shut down by an operator",
    "57P02": "a crash of another session",
    "57P05": "idle for too long",
    "08000": "the connection",
    "08003": "it does not exist",
    "08006": "it failed",
    "08001": "it could not be made",
    "08004": "it was refused",
    "08007": "its transaction was cut off",
    "08P01": "protocol",
}
TOLD_AT_ONCE = {
    "42P01": errors.NotMigrated,
    "3F000": errors.NotMigrated,
    "42883": errors.NotMigrated,
    "28P01": errors.AccessDenied,
    "28000": errors.AccessDenied,
    "42501": errors.AccessDenied,
    "3D000": errors.DatabaseMissing,
    "53100": errors.DiskFull,
    "53200": errors.DiskFull,
    "54000": errors.DiskFull,
    "22P05": errors.Refused,
    "23505": errors.Refused,
    "XX000": errors.DatabaseError,
}


@pytest.fixture(scope="module")
def raised(postgres_servers: Any) -> Any:
    """Lets a real server raise an error of this code."""
    with postgres_servers[POSTGRES].fresh_database() as url, psycopg.connect(url, autocommit=True) as server:

        def raised(code: str, constraint: str = "") -> errors.DibsError:
            more = f", constraint = '{constraint}'" if constraint else ""
            with pytest.raises(psycopg.Error) as caught:
                server.execute(f"do $$ begin raise 'said so' using errcode = '{code}'{more}; end $$")
            assert caught.value.sqlstate == code
            return translate(caught.value, "here")

        yield raised


def is_tried_again(operation: Operation[Any], error: errors.DibsError) -> bool:
    assert isinstance(error, errors.DatabaseError)
    return Patience(operation, 30.0).pause(error) > 0


@pytest.mark.parametrize("code", NOT_DONE)
def test_what_was_not_done_is_tried_again(raised: Any, code: str) -> None:
    error = raised(code)
    assert isinstance(error, errors.Conflict)
    assert "refused for now: said so" in str(error)
    assert is_tried_again(KEYED, error)
    assert is_tried_again(ONCE, error)


@pytest.mark.parametrize("code", NO_ANSWER)
def test_what_may_have_been_done_is_tried_again_where_that_does_no_harm(raised: Any, code: str) -> None:
    error = raised(code)
    assert isinstance(error, errors.ConnectionLost)
    assert is_tried_again(KEYED, error)
    with pytest.raises(errors.OutcomeUnknown):
        is_tried_again(ONCE, error)


@pytest.mark.parametrize("code, kind", TOLD_AT_ONCE.items())
def test_what_will_not_change_is_told_at_once(raised: Any, code: str, kind: type[errors.DibsError]) -> None:
    error = raised(code)
    assert type(error) is kind
    for operation in (KEYED, ONCE):
        with pytest.raises(kind):
            is_tried_again(operation, error)


def test_a_row_that_was_given_a_job_since_is_seen_anew(raised: Any) -> None:
    assert type(raised("23505", LEASE)) is errors.Conflict
    assert type(raised("23505", "another")) is errors.Refused


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        TimedOut("no answer within 1 s"),
        pg.OperationalError("the connection is closed"),
        pg.InterfaceError("the connection is closed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_a_word_of_the_server_nobody_knows(error: Any) -> None:
    assert type(translate(error, "here")) is errors.ConnectionLost


def test_what_was_stopped_was_not_done() -> None:
    assert is_tried_again(ONCE, translate(Stopped("no answer within 1 s"), "here"))


@pytest.mark.parametrize(
    "said, kind",
    [
        ("FATAL: the database system is starting up", errors.Conflict),
        ("FATAL: the database system is shutting down", errors.Conflict),
        ("FATAL: the database system is in recovery mode", errors.Conflict),
        ("FATAL: sorry, too many clients already", errors.Conflict),
        ("FATAL: remaining connection slots are reserved", errors.Conflict),
        ("connection refused", errors.Unreachable),
        ("connection timeout expired", errors.Unreachable),
    ],
)
def test_who_cannot_be_connected_to_now_is_tried_again(said: str, kind: type[errors.DibsError]) -> None:
    error = translate_connect(psycopg.OperationalError(said), "here")
    assert type(error) is kind
    assert is_tried_again(ONCE, error)
