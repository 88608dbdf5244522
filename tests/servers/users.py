"""Doing things as a user without privileges, who cannot write what is read-only."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_SECONDS = 60.0

# Root may keep its interpreter where nobody else may look. So it imports first, and then steps down for good.
STEP_DOWN = """\
import importlib, os, sys
uid, gid, modules, source = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(), sys.argv[4]
for module in modules:
    importlib.import_module(module)
if uid != os.getuid():
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
exec(compile(source, "<unprivileged>", "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True, slots=True)
class User:
    """Whom a process runs as."""

    uid: int
    gid: int

    @property
    def ids(self) -> tuple[int, int]:
        """The user and group, as os.chown takes them."""
        return self.uid, self.gid


def unprivileged() -> User:
    """Return `nobody` for root, and for anyone else themselves."""
    if os.geteuid() != 0:
        return User(os.geteuid(), os.getegid())
    nobody = pwd.getpwnam("nobody")
    return User(nobody.pw_uid, nobody.pw_gid)


def run_unprivileged(command: Sequence[str | Path], *, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command which the unprivileged user may execute; output and errors are captured together."""
    user = unprivileged()
    steps_down = user.uid != os.geteuid()
    return subprocess.run(
        command,
        cwd=cwd,
        user=user.uid if steps_down else None,
        group=user.gid if steps_down else None,
        extra_groups=[] if steps_down else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def run_python_unprivileged(
    source: str, *, cwd: Path, modules: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run Python source as the unprivileged user.

    Name in `modules` whatever the source imports, now or later, beyond what they import themselves.
    """
    uid, gid = unprivileged().ids
    return subprocess.run(
        [sys.executable, "-c", STEP_DOWN, str(uid), str(gid), " ".join(modules), source],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@contextlib.contextmanager
def unprivileged_folder() -> Iterator[Path]:
    """Give a temporary folder of the unprivileged user. (What pytest gives to root, others cannot even enter.)"""
    folder = Path(tempfile.mkdtemp(prefix="dibs-", dir="/tmp"))
    os.chown(folder, *unprivileged().ids)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
