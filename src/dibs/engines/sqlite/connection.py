"""SQLite connections of our own: how they are opened, how a write transaction begins, when the WAL is checkpointed.

One connection for each role, opened after a fork, used under a lock. The database, -wal and -shm files are never opened
by other means than SQLite: closing such a handle would drop SQLite's locks.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dibs.engines.dialect import Dialect
from dibs.engines.sqlite.errors import BUSY, translate
from dibs.errors import DatabaseMissing, NotADatabase, ReadOnlyDatabase, UnsafeFileSystem
from dibs.operations.operation import Operation, Rows, Values, run

T = TypeVar("T")

CHECKPOINT_PAGES = 10_000
PAGES_PER_COMMIT, CHANGES_PER_PAGE = 6, 6  # no less than it is; only the time of checkpoints hangs on it
CHECKPOINT_WAIT = 0.25  # seconds for the write lock: it can be done later, and a beat may be what it comes after
CHECKPOINT_AGAIN = 1_000  # pages after one that could not be made
FIRST_PAUSE, FACTOR, LONGEST_PAUSE = 0.0005, 1.5, 0.01
FIXED_WAL_RESET = (3, 51, 3)  # before it, a checkpoint beside a writer can corrupt the file
RETURNING = (3, 35)
NOT_UTF8 = "Could not decode to UTF-8"  # so says Python
# As /proc/self/mounts calls them: network file systems, and folders that a virtual machine has from its host.
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "lustre", "beegfs", "gpfs", "orangefs",
    "davfs", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs",
    *(f"fuse.{name}" for name in (
        "sshfs", "ceph", "ceph-fuse", "glusterfs", "mfs", "juicefs", "s3fs", "goofys", "gcsfuse", "blobfuse",
        "blobfuse2", "rclone", "davfs", "gvfsd-fuse", "vmhgfs-fuse", "grpcfuse",
    )),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Which file, by which library, with which durability."""

    path: str
    module: ModuleType
    synchronous: str = "full"
    network: bool = False  # allow a network file system

    @property
    def autocheckpoint(self) -> bool:
        """SQLite may checkpoint by itself, on versions where that is safe beside other writers."""
        return tuple(self.module.sqlite_version_info) >= FIXED_WAL_RESET

    @property
    def able(self) -> frozenset[str]:
        """What younger versions can do, and the statements make use of."""
        return frozenset({"returning"} if tuple(self.module.sqlite_version_info) >= RETURNING else ())


class SqliteConnection:
    """One connection for one role, usable from any thread, one at a time."""

    def __init__(self, place: Place, dialect: Dialect, deadline: float) -> None:
        self.place, self.dialect, self.deadline = place, dialect, deadline
        self.lock = threading.RLock()
        self.error: type[Exception] = place.module.Error
        self._changes = 0  # as of the last commit
        self._pages = random.randrange(CHECKPOINT_PAGES)  # since the last checkpoint; processes take turns with them
        self.closed = False
        self.raw = _open(place, deadline)
        for step in dialect.steps["temporary"]:
            self.raw.execute(step.sql)

    def run(self, operation: Operation[T], *, within: float | None = None) -> T:
        """Carry an operation in one transaction of its own; wait `within` seconds for the write lock."""
        with self.lock:  # and without generators as context managers: this is the way of every turn
            try:
                if self.dialect.in_one_step(operation.only):
                    return self._alone(operation, within)
                execute = self.execute
                if operation.reads:
                    self.raw.execute("begin")
                    execute = partial(self.patient, within=within)
                else:
                    self.begin(within)
                try:
                    answer = run(execute, self.dialect.speak(operation))
                    if not operation.reads:
                        self.commit()
                    return answer
                finally:
                    self.roll_back()
            except self.error as error:
                if not (str(error).startswith(NOT_UTF8) and operation.restartable()):
                    raise translate(error, self.place.path) from error
                self.raw.text_factory = _text_or_bytes  # from now on, for it takes longer
        return self.run(operation, within=within)

    def execute(self, sql: str, values: Values) -> Rows:
        """One step, or one for each of many rows."""
        if not isinstance(values, dict):
            self.raw.executemany(sql, values)
            return []
        return self.raw.execute(sql, values).fetchall()  # type: ignore[no-any-return]  # sqlite3 has no types here

    def patient(self, sql: str, values: Values, within: float | None = None) -> Rows:
        """One step without the write lock. Even one that reads waits while somebody opens or closes the file."""
        return _patiently(self.raw, sql, self.error, within or self.deadline, values).fetchall()  # type: ignore[no-any-return]  # likewise

    def _alone(self, operation: Operation[T], within: float | None) -> T:
        """What is one step is a transaction by itself, and needs no other words."""
        answer = run(lambda sql, values: self.patient(sql, values, within), self.dialect.speak(operation))
        self._mind_wal()
        return answer

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A write transaction for other statements than those of an operation."""
        self.begin()
        try:
            yield self.raw
            self.commit()
        finally:
            self.roll_back()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Driver errors stop here."""
        try:
            yield
        except self.error as error:
            raise translate(error, self.place.path) from error

    def close(self) -> None:
        """Close it."""
        with self.lock:
            self.closed = True
            self.raw.close()

    def rest(self) -> bool:
        """Close it when nobody uses it; False when that is this very thread, in the middle of a transaction."""
        with self.lock:
            if self.closed or not self.raw.in_transaction:
                self.close()
            return self.closed

    def begin(self, within: float | None = None) -> None:
        """Wait for the write lock, and take it."""
        _patiently(self.raw, "begin immediate", self.error, within or self.deadline)

    def commit(self) -> None:
        """Make it last."""
        self.raw.execute("commit")
        self._mind_wal()

    def roll_back(self) -> None:
        """End the transaction, if there is one."""
        if self.raw.in_transaction:
            self.raw.execute("rollback")

    def _mind_wal(self) -> None:
        if self.place.autocheckpoint:
            return
        changes, self._changes = self.raw.total_changes - self._changes, self.raw.total_changes
        self._pages += PAGES_PER_COMMIT + changes // CHANGES_PER_PAGE
        if self._pages >= CHECKPOINT_PAGES:
            try:
                self.checkpoint()
                self._pages = 0
            except self.error:  # what was committed stays so, whatever becomes of a checkpoint
                self._pages -= CHECKPOINT_AGAIN

    def checkpoint(self) -> None:
        """Where SQLite's own checkpoint is not safe beside a writer, ours keeps writers out by the write lock."""
        self.begin(CHECKPOINT_WAIT)
        try:
            helper = connect(self.place)
            try:
                helper.execute("pragma wal_checkpoint(passive)").fetchall()
            finally:
                helper.close()
        finally:
            self.roll_back()


def _open(place: Place, deadline: float) -> Any:
    check_path(place)
    try:
        raw = connect(place)
        try:
            # the first to open a new file race for its journal mode, and whoever has it may wait for the disk
            _patiently(raw, "pragma journal_mode = wal", place.module.Error, deadline)
            raw.execute(f"pragma synchronous = {place.synchronous}")
            raw.execute("pragma cache_size = -65536")
            raw.execute("pragma temp_store = memory")
            raw.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES if place.autocheckpoint else 0}")
        except BaseException:
            raw.close()
            raise
    except place.module.Error as error:
        raise translate(error, place.path) from error
    return raw


def _text_or_bytes(text: bytes) -> str | bytes:
    """SQLite takes any bytes for a text: what somebody else has stored in another encoding is to keep nobody else."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _patiently(raw: Any, sql: str, locked: type[Exception], within: float, values: Values = ()) -> Any:
    """Short random pauses are fair; with SQLite's own busy timeout some processes get nothing for seconds."""
    until, ceiling = time.monotonic() + within, FIRST_PAUSE
    while True:
        try:
            return raw.execute(sql, values)
        except locked as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != BUSY or time.monotonic() > until:
                raise
        time.sleep(random.uniform(0.2, 1.0) * ceiling)
        ceiling = min(ceiling * FACTOR, LONGEST_PAUSE)


def connect(place: Place) -> Any:
    """A bare connection: no settings, no tables, no waiting."""
    return place.module.connect(place.path, isolation_level=None, timeout=0, check_same_thread=False)


def check_path(place: Place) -> None:
    """Say what is wrong with the place before SQLite says `unable to open database file`."""
    path = Path(place.path)
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        raise DatabaseMissing(f"The directory {folder} does not exist. Create it, or choose another file.")
    if os.path.isdir(path):
        raise NotADatabase(f"{path} is a directory. Name a file in it: sqlite:///{path}/dibs.db")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReadOnlyDatabase(
            f"The directory {folder} cannot be written by this user. SQLite keeps its -wal and -shm beside the file."
        )
    if path.exists() and not os.access(path, os.W_OK):
        raise ReadOnlyDatabase(f"{path} cannot be written by this user. Check its owner and permissions.")
    kind = file_system(folder)
    if kind in NETWORK and not place.network:
        raise UnsafeFileSystem(
            f"{path} lies on a network file system ({kind}), where SQLite's locks do not hold. "
            "Use a local disk, or PostgreSQL; if you are sure, add ?network=allow to the URL."
        )


def file_system(folder: Path, mounts: str = "/proc/self/mounts") -> str:
    """The kind of file system that a folder lies on, or nothing where that cannot be told."""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return ""
    real = str(folder.resolve())
    best = ("", "")
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
