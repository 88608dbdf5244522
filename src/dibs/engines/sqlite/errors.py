"""sqlite3's errors become ours here and nowhere else."""

from __future__ import annotations

from typing import Any

from dibs import errors

# https://www.sqlite.org/rescode.html; the low byte of an extended code is the primary one.
PERM, BUSY, LOCKED, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, TOOBIG, NOTADB = 3, 5, 6, 8, 10, 11, 13, 14, 18, 26
IOERR_SHMSIZE = IOERR | 19 << 8


def translate(error: Exception, path: str) -> errors.DibsError:
    """What happened, why, and what to do next."""
    code: Any = getattr(error, "sqlite_errorcode", None)
    text = str(error)
    if code == IOERR_SHMSIZE:
        code = FULL  # no room for the -shm beside the file
    match code & 0xFF if isinstance(code, int) else None:
        case 5 | 6:
            return errors.DatabaseLocked(
                f"Another program holds the write lock of {path} ({text}). Is a shell or a long transaction open on it?"
            )
        case 8 | 3:
            return errors.ReadOnlyDatabase(f"{path} cannot be written ({text}). Check the owner and the permissions.")
        case 13:
            return errors.DiskFull(
                f"There is no room left for {path}. Nothing was written. Free some space and repeat."
            )
        case 14:
            return errors.DatabaseMissing(
                f"{path} cannot be opened ({text}). Does its directory exist, and may this user write there?"
            )
        case 26 | 11:
            return errors.NotADatabase(f"{path} is not a SQLite database ({text}). Choose another file.")
        case _ if "no such table: dibs_" in text:
            return errors.NotMigrated(f"{path} has no dibs tables. Run: dibs db migrate")
        case 18 | 19 | 20:
            return errors.Refused(f"SQLite does not accept the data: {text}")
        case _:
            return errors.DatabaseError(f"SQLite says: {text} ({path})")
