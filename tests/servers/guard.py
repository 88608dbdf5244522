"""A program that runs a server until it ends or the run that started it ends, however that ends.

The run holds the writing end of a named pipe, its leash. The guard is the server's parent and reads the pipe: when the
run closes it or is killed, the read returns, and the guard ends its child; the last guard removes the run's folder. It
knows its child as a parent does, not by a process id kept somewhere, so it cannot hit a stranger.

It needs nothing but the standard library, so it starts in a few milliseconds.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

PATIENCE_SECONDS = 5.0
MEMORY = Path("/dev/shm")
PR_SET_CHILD_SUBREAPER = 36  # from <sys/prctl.h>
# A guard passes these on to its child; SIGKILL, which it could not survive itself, comes in the guise of SIGUSR1.
PASSED_ON = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGQUIT: signal.SIGQUIT,
    signal.SIGHUP: signal.SIGHUP,
    signal.SIGUSR1: signal.SIGKILL,
}


def main(folder: Path, uid: int, gid: int, command: list[str]) -> None:
    """Run the command as that user, from inside the folder."""
    alive = os.open(folder / "guards", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(alive, fcntl.LOCK_SH)
    leash = open_leash(folder)
    adopt_orphans()
    child = start(command, uid=uid, gid=gid)
    let_go = threading.Event()
    threading.Thread(target=end_when_let_go, args=(leash, child, let_go), daemon=True).start()
    child.wait()
    end_orphans()
    if let_go.is_set():
        remove_if_last(folder, alive)


def open_leash(folder: Path) -> int:
    """Open the reading end of the leash: a read from it returns when the run has ended."""
    # Opened without waiting, because the run may be gone already: then the first read returns at once.
    leash = os.open(folder / "leash", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(leash, True)
    return leash


def start(command: list[str], *, uid: int, gid: int) -> subprocess.Popen[bytes]:
    """Start the child, with no moment in which a signal for it would be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    if uid == os.getuid():
        child = subprocess.Popen(command, preexec_fn=unblock)
    else:
        child = subprocess.Popen(command, preexec_fn=unblock, user=uid, group=gid, extra_groups=[])

    def pass_on(received: int, _frame: FrameType | None) -> None:
        child.send_signal(PASSED_ON[signal.Signals(received)])

    for received in PASSED_ON:
        signal.signal(received, pass_on)
    unblock()
    return child


def adopt_orphans() -> None:
    """Become the parent of the processes that a killed server leaves behind; only Linux has a way to."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """Kill what the server left behind, so that it is gone as a whole when the guard is."""
    for children in Path("/proc/self/task").glob("*/children"):
        for process in children.read_text().split():
            os.kill(int(process), signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def unblock() -> None:
    """Let the signals through again: in the guard when it can pass them on, in the child before it begins."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)


def end_when_let_go(leash: int, child: subprocess.Popen[bytes], let_go: threading.Event) -> None:
    """Wait for the end of the run; then end the child."""
    os.read(leash, 1)
    let_go.set()
    child.send_signal(signal.SIGQUIT)  # to PostgreSQL: leave at once, and take your processes and shared memory along
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(PATIENCE_SECONDS)
    child.kill()


def remove_if_last(folder: Path, alive: int) -> None:
    """Tidy up for a run that was killed: the guard that is alone removes the folder."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder)


def remove(folder: Path) -> None:
    """Remove the folder of a run, with its namesake in memory."""
    for each in (folder, MEMORY / folder.name):
        shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
