"""The folder of a run's servers, and the pipe that ends them with the run (see guard.py)."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.servers import guard
from tests.servers.users import unprivileged

ENDING_SECONDS = 2 * guard.PATIENCE_SECONDS
# Where files live in memory, a database is created in 10 ms instead of 200. Containers may have very little of it.
ENOUGH_MEMORY = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Leash:
    """A folder whose processes live no longer than the process that holds it. Any process may start more of them."""

    folder: Path
    _guards: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    @contextlib.contextmanager
    def hold(cls) -> Iterator["Leash"]:
        """Give a new folder; afterwards end every process in it, and remove it."""
        leash = cls(Path(tempfile.mkdtemp(prefix="dibs-", dir="/tmp")))  # short, for the Unix sockets in it
        leash.folder.chmod(0o755)  # for the unprivileged user that servers run as
        if guard.MEMORY.is_dir() and shutil.disk_usage(guard.MEMORY).free > ENOUGH_MEMORY:
            leash._in_memory.mkdir()
        os.mkfifo(leash.folder / "leash")
        held = os.open(leash.folder / "leash", os.O_RDWR)  # O_WRONLY would wait for a first reader
        with (leash.folder / "guards").open("w") as alive:
            try:
                yield leash
            finally:
                os.close(held)
                leash._wait_for_guards(alive)
                guard.remove(leash.folder)

    def start(self, command: Sequence[str | Path], *, log: Path) -> subprocess.Popen[bytes]:
        """Start a command as an unprivileged user. The guard returned ends when it does and passes signals on to it."""
        user = unprivileged()
        with log.open("ab") as output:
            started = subprocess.Popen(
                [sys.executable, "-IS", guard.__file__, self.folder, str(user.uid), str(user.gid), *command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the run alone
            )
        self._guards.append(started)
        return started

    def end_with_it(self) -> None:
        """End this process too, without further ado, when the leash is let go."""
        threading.Thread(target=_exit_when_let_go, args=(guard.open_leash(self.folder),), daemon=True).start()

    def new_folder(self, name: str, *, on_disk: bool = False) -> Path:
        """Create a folder for the unprivileged user, in memory where there is enough; its name begins with this one."""
        place = self.folder if on_disk else self.memory or self.folder
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
        os.chown(folder, *unprivileged().ids)
        return folder

    def once(self, name: str, make: Callable[[], str]) -> str:
        """Return what `make` returned to the first of all processes that asked for this name."""
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = self.folder / f"{name}.once"
            if not result.exists():
                result.write_text(make())
            return result.read_text()

    @property
    def memory(self) -> Path | None:
        """The folder's namesake in memory, if there is enough of that."""
        return self._in_memory if self._in_memory.exists() else None

    @property
    def _in_memory(self) -> Path:
        return guard.MEMORY / self.folder.name

    def _wait_for_guards(self, alive: IO[str]) -> None:
        """Wait for the guards started here, then for those that other processes of the run started."""
        for started in self._guards:
            started.wait(ENDING_SECONDS)
        deadline = time.monotonic() + ENDING_SECONDS
        while not _is_free(alive) and time.monotonic() < deadline:
            time.sleep(0.01)


def _exit_when_let_go(leash: int) -> None:
    os.read(leash, 1)
    os._exit(1)


def _is_free(lock: IO[str]) -> bool:
    """Whether no guard holds the lock, which each does for as long as it lives."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
