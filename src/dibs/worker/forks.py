"""Whether this process is a copy that a fork has made. Asked after every job, when asking the system would be dear."""

from __future__ import annotations

import os

_forks: list[None] = []  # the only way to be told is for the whole process


def forks_before() -> int:
    """How many forks led from the process that imported this to the one that asks."""
    return len(_forks)


os.register_at_fork(after_in_child=lambda: _forks.append(None))
