"""Being told by Linux that a file was written, without opening it: to close it again would drop SQLite's locks."""

from __future__ import annotations

import asyncio
import ctypes
import os
from typing import Any

MODIFY, CREATE = 0x2, 0x100
READ = 65536


class Written:
    """An event that is set whenever the file is written to; it may come into being later, and again."""

    def __init__(self, path: str) -> None:
        self.folder, self.name = os.path.dirname(os.path.abspath(path)), os.path.basename(path).encode()
        self.event = asyncio.Event()
        self.number = _inotify(self.folder)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.number, self._read)

    def close(self) -> None:
        """Hear no more."""
        self.loop.remove_reader(self.number)
        os.close(self.number)

    def _read(self) -> None:
        try:
            told = os.read(self.number, READ)
        except BlockingIOError:
            return
        if self.name in told:  # the names of files are in it, filled up with zeros
            self.event.set()


def _inotify(folder: str) -> int:
    """A watch on a folder; OSError where there is no such thing."""
    try:
        libc: Any = ctypes.CDLL(None, use_errno=True)
        number = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except AttributeError:
        raise OSError("this system has no inotify") from None
    if number < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    if libc.inotify_add_watch(number, os.fsencode(folder), MODIFY | CREATE) < 0:
        error = ctypes.get_errno()
        os.close(number)
        raise OSError(error, "inotify_add_watch")
    return number
