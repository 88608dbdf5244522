"""Being told that a file was written, without opening it; and doing without where nobody tells."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.engines.sqlite import inotify, wakeups
from dibs.engines.sqlite.inotify import Written

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


async def heard(written: Written) -> bool:
    try:
        async with asyncio.timeout(5):
            await written.event.wait()
    except TimeoutError:
        return False
    written.event.clear()
    return True


async def test_a_write_is_told_even_if_the_file_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "a.db-wal"
    written = Written(str(path))
    try:
        for text in ("first", "second"):
            path.write_text(text)
            assert await heard(written)
            written.event.clear()
        path.unlink()
        path.write_text("anew")
        assert await heard(written)
    finally:
        written.close()


async def test_other_files_are_none_of_its_business(tmp_path: Path) -> None:
    written = Written(str(tmp_path / "a.db-wal"))
    try:
        (tmp_path / "other").write_text("x")
        for _ in range(3):
            await asyncio.sleep(0.01)
        assert not written.event.is_set()
    finally:
        written.close()


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="inotify_add_watch"):
        Written(str(tmp_path / "no" / "a.db-wal"))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("tells", [True, False])
async def test_who_listens_hears_of_a_commit_either_way(
    tmp_path: Path, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(folder: str) -> int:
        raise OSError("no inotify here")

    if not tells:
        monkeypatch.setattr(inotify, "_inotify", nobody)
    app, other = Dibs(f"sqlite:///{tmp_path}/jobs.db"), Dibs(f"sqlite:///{tmp_path}/jobs.db")

    @other.task
    def it() -> None: ...

    await it.aenqueue()
    async with app.engine.listen() as hints, asyncio.timeout(20):
        first = asyncio.ensure_future(anext(hints))
        for _ in range(5):
            await asyncio.sleep(wakeups.EVERY)
        await it.aenqueue()
        assert (await first).channel == "dibs_wake"
    await app.aclose()
    await other.aclose()
