"""libfaketime, which makes a program see another time: Debian's package libfaketime."""

from pathlib import Path

FAKETIME = "FAKETIME"


def find_faketime() -> Path | None:
    """The library, where it is installed."""
    return next(iter(sorted(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"))), None)
