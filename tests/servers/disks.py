"""A disk that is soon full."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(*, kilobytes: int) -> Iterator[Path]:
    """Mount a file system of that size, for anyone to write; only root can. Unmount it afterwards."""
    with tempfile.TemporaryDirectory(prefix="dibs-", dir="/tmp") as folder:
        options = f"size={kilobytes}k,mode=777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "dibs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            # Lazily, so that a file which a failed test left open does not keep the disk.
            subprocess.run(["umount", "--lazy", folder], check=True)
