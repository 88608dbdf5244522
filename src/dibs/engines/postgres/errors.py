"""psycopg's errors become ours here and nowhere else."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from dibs import errors

# Refused, nothing written, may work in a moment: serialization, deadlock, starting up, shutting down before the
# statement began, a standby, too many connections.
FOR_NOW = {"40001", "40P01", "57P03", "25006", "53300", "57014"}
LEASE = "row_lease"  # of a row that was given a job since we saw it: seen anew, it is not taken
NO_ANSWER = {"57P01", "57P02", "57P05"}  # the server ended the session: whether it had committed is unknown
MISSING_SCHEMA = {"3F000", "42P01", "42883"}
DENIED = {"28000", "28P01", "42501"}
FULL = {"53100", "53200", "54000"}


class TimedOut(psycopg.OperationalError):
    """No answer within the client's own deadline."""


class Stopped(TimedOut):
    """And the server was told to stop, and has: nothing was written."""


def translate(error: psycopg.Error | OSError, where: str) -> errors.DibsError:
    """What happened, why, and what to do next."""
    if isinstance(error, OSError):  # of the event loop, about a socket that is gone
        return errors.ConnectionLost(f"The connection to {where} broke: {error}")
    code, text = error.sqlstate or "", _sentence(error)
    if code == "55P03":
        return errors.Locked(f"PostgreSQL refused for now: {text}")
    if code in FOR_NOW or (code == "23505" and error.diag.constraint_name == LEASE):
        return errors.Conflict(f"PostgreSQL refused for now: {text}")
    if isinstance(error, Stopped):
        return errors.Conflict(f"{where} gave {text}, and was told to stop. Nothing was written")
    if code in NO_ANSWER or code.startswith("08") or isinstance(error, TimedOut):
        return errors.ConnectionLost(f"The connection to {where} broke: {text}")
    if code in MISSING_SCHEMA:
        return errors.NotMigrated(f"{where} has no dibs tables, or old ones ({text}). Run: dibs db migrate")
    if code in DENIED:
        return errors.AccessDenied(
            f"{where} does not allow this: {text}. Check the user, the password and its privileges."
        )
    if code == "3D000":
        return errors.DatabaseMissing(f"{where}: {text}. Create it (createdb) or correct the URL.")
    if code in FULL:
        return errors.DiskFull(f"{where} has no room left: {text}. Nothing was written.")
    if code.startswith("22") or code.startswith("23"):
        return errors.Refused(f"PostgreSQL does not accept the data: {text}")
    if isinstance(error, pg.OperationalError | pg.InterfaceError) and not code:
        return errors.ConnectionLost(f"The connection to {where} broke: {text}")
    return errors.DatabaseError(f"PostgreSQL says: {text} ({where})")


def translate_connect(error: psycopg.Error, where: str) -> errors.DibsError:
    """libpq gives no codes while connecting, only texts."""
    text = " ".join(str(error).split())
    if "password authentication failed" in text or "no password supplied" in text or "authentication failed" in text:
        return errors.AccessDenied(f"{where} does not accept the user or the password. Check the URL. ({text})")
    if "pg_hba.conf" in text or "is not permitted to log in" in text or ("role" in text and "does not exist" in text):
        return errors.AccessDenied(f"{where} does not let this user in. ({text})")
    if "database" in text and "does not exist" in text:
        return errors.DatabaseMissing(
            f"{where}: that database does not exist. Create it (createdb) or correct the URL. ({text})"
        )
    if (
        "starting up" in text
        or "shutting down" in text
        or "too many clients" in text
        or "recovery mode" in text
        or "remaining connection slots" in text
    ):
        return errors.Conflict(f"{where} is not ready: {text}")
    return errors.Unreachable(f"No PostgreSQL answers at {where}. Is it running, and are host and port right? ({text})")


def _sentence(error: psycopg.Error) -> str:
    """What the server says, without the statement and the caret below it."""
    said, detail = error.diag.message_primary or str(error).strip(), error.diag.message_detail
    return f"{said} ({detail.rstrip('.')})" if detail else said
