"""Being told that a file was written, without opening it; and doing without where nobody tells."""

import asyncio
import os
import sqlite3
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.engines.sqlite import inotify, wakeups
from dibs.engines.sqlite.connection import Place
from dibs.engines.sqlite.inotify import Written

# Where the system is another, the file is looked at instead: the last test here shows that, everywhere.
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="no other system has inotify, and dibs does without it")


async def heard(written: Written) -> bool:
    try:
        async with asyncio.timeout(5):
            await written.event.wait()
    except TimeoutError:
        return False
    written.event.clear()
    return True


@on_linux
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


@on_linux
async def test_other_files_are_none_of_its_business(tmp_path: Path) -> None:
    written = Written(str(tmp_path / "a.db-wal"))
    try:
        other = Written(str(tmp_path / "other"))
        (tmp_path / "other").write_text("x")
        assert await heard(other)
        written._read()
        assert not written.event.is_set()
        other.close()
    finally:
        written.close()


@on_linux
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
        await it.aenqueue()
        assert (await anext(hints)).channel == "dibs_wake"
    await app.aclose()
    await other.aclose()


@on_linux
async def test_who_listens_by_a_link_hears_of_a_commit_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "IN_ANY_CASE", 3600.0)
    (tmp_path / "there").mkdir()
    (tmp_path / "jobs.db").symlink_to(tmp_path / "there/jobs.db")
    app, other = Dibs(f"sqlite:///{tmp_path}/jobs.db"), Dibs(f"sqlite:///{tmp_path}/there/jobs.db")
    task = other.task(name="it")(lambda: None)
    await task.aenqueue()
    async with app.engine.listen() as hints, asyncio.timeout(30):
        heard = asyncio.ensure_future(anext(hints))
        await asyncio.sleep(0)  # now it watches
        await task.aenqueue()
        assert (await heard).channel == "dibs_wake"
    await app.aclose()
    await other.aclose()


@on_linux
async def test_a_second_commit_is_seen_although_both_writes_were_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is there, the second is on its way to the disk, and nobody writes any more."""
    versions = iter([1, 1, 2, 2, 2, 2, 2, 2])
    monkeypatch.setattr(wakeups, "IN_ANY_CASE", 3600.0)
    monkeypatch.setattr(wakeups.Watch, "version", lambda watch: next(versions, 3))
    watch = wakeups.Watch(Place(str(tmp_path / "jobs.db"), sqlite3), nullcontext())
    hints = watch.hints()
    async with asyncio.timeout(30):
        first = asyncio.ensure_future(anext(hints))
        await asyncio.sleep(0)  # now it watches
        (tmp_path / "jobs.db-wal").write_text("both")
        await first
        await anext(hints)
    await hints.aclose()
