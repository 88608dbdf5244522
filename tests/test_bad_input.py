"""Whatever is wrong from outside: its own error, a sentence that says what to do, nothing written, nothing locked."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from dibs import Dibs, Task
from dibs.engines.migrate import newest
from dibs.engines.sqlite import connection
from dibs.errors import (
    AccessDenied,
    ConfigError,
    DatabaseLocked,
    DatabaseMissing,
    DeadlineExceeded,
    DibsError,
    DiskFull,
    InvalidJob,
    InvalidOption,
    InvalidPayload,
    NewerDatabase,
    NotADatabase,
    NotMigrated,
    PayloadTooLarge,
    UnknownScheme,
    Unreachable,
    UnsafeFileSystem,
)
from dibs.operations import jobs
from dibs.operations.claims import Want, turn
from dibs.operations.jobs import Filter
from tests.actors import Actors
from tests.apps import POSTGRES, count_jobs, nothing_is_locked, on_postgres, on_sqlite
from tests.servers.disks import small_disk
from tests.servers.fixtures import FreshDatabase, OwnServer
from tests.servers.postgres import GUARDED, PASSWORD
from tests.servers.users import unprivileged

MIB = 1024 * 1024


def declare(app: Dibs) -> Task[..., None]:
    @app.task(name="store")
    def store(data: Any) -> None: ...

    return store


def fails(app: Dibs, error: type[DibsError], says: str) -> DibsError:
    """Adding a job fails so, in sync and in async code."""
    task = declare(app)
    with pytest.raises(error, match=says) as caught:
        task.enqueue(data=1)
    assert type(caught.value) is error

    async def later() -> None:
        try:
            await task.aenqueue(data=1)
        finally:
            await app.aclose()

    with pytest.raises(error, match=says):
        asyncio.run(later())
    return caught.value


# The address


@pytest.mark.parametrize("url", ["mysql://localhost/shop", "redis://localhost", "http://localhost/shop.db"])
def test_an_unknown_kind_of_database(url: str) -> None:
    with pytest.raises(UnknownScheme, match=r"Use sqlite:///file\.db or postgresql://user@host/database"):
        Dibs(url)


@pytest.mark.parametrize("place", ["127.0.0.1:1", "nobody.invalid"])
def test_a_server_that_does_not_answer(place: str) -> None:
    app = Dibs(f"postgresql://ann:s3cret@{place}/shop")
    error = fails(
        app, Unreachable, f"No PostgreSQL answers at {place}/shop. Is it running, and are host and port right"
    )
    assert "s3cret" not in str(error)


def with_user(url: str, user: str, password: str = "") -> str:
    return url.replace("//postgres@", f"//{user}:{password}@")


@on_postgres
def test_a_wrong_password(url: str) -> None:
    error = fails(Dibs(with_user(url, GUARDED, "s3cret")), AccessDenied, "does not accept the user or the password")
    assert "s3cret" not in str(error)
    assert nothing_is_locked(url)


@on_postgres
def test_an_unknown_user(url: str) -> None:
    fails(Dibs(with_user(url, "nobody_of_that_name")), AccessDenied, "does not let this user in")


@on_postgres
def test_a_user_without_privileges(url: str, app: Dibs) -> None:
    guarded = Dibs(with_user(url, GUARDED, PASSWORD))
    fails(guarded, AccessDenied, "permission denied.*Check the user, the password and its privileges")
    assert (count_jobs(app), nothing_is_locked(url)) == (0, True)


@on_postgres
def test_a_database_that_there_is_not(url: str) -> None:
    fails(Dibs(url + "_of_another_name"), DatabaseMissing, "does not exist. Create it .createdb. or correct the URL")


def test_a_server_without_our_tables(postgres_url: FreshDatabase) -> None:
    url = postgres_url(POSTGRES)
    fails(Dibs(url), NotMigrated, "has no dibs tables yet. Run: dibs db migrate")
    with psycopg.connect(url) as raw:
        assert raw.execute("select to_regnamespace('dibs') is null").fetchone() == (True,)


def test_a_database_that_is_newer_than_the_code(url: str, app: Dibs) -> None:
    app.migrate()
    now = "clock_timestamp()" if app.engine.name == "postgres" else "0"
    Actors(app.engine).sql(f"insert into dibs.migrations (number, name, applied_at) values (9999, 'future', {now})")
    version = newest(app.engine.name)
    newer = Dibs(url)
    fails(newer, NewerDatabase, f"schema 9999, this one knows {version}.. Upgrade dibs here; nothing was changed")
    with pytest.raises(NewerDatabase):
        newer.migrate()
    assert (count_jobs(app), nothing_is_locked(url)) == (0, True)


# The driver


def run(source: str, **more: Any) -> str:
    command = [sys.executable, "-c", source]
    done: subprocess.CompletedProcess[str] = subprocess.run(command, capture_output=True, text=True, timeout=60, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_without_the_driver_the_extra_is_named(tmp_path: Path) -> None:
    said = run(
        """
import sys
sys.modules["psycopg"] = None  # as if it were not installed
from dibs import Dibs
from dibs.errors import MissingDriver
app = Dibs("sqlite:///x.db")
app.task(name="t")(lambda: 7).enqueue()
assert app.drain().successful == 1  # SQLite does not need it
try:
    Dibs("postgresql://localhost/x")
except MissingDriver as error:
    print(error.package, error.extra, error)
""",
        cwd=tmp_path,
    )
    assert said == "psycopg postgres psycopg is not installed, and this URL needs it: pip install 'dibs[postgres]'"


@pytest.mark.slow
def test_a_driver_that_does_not_load(tmp_path: Path) -> None:
    """psycopg without its binary part, and no libpq on the machine."""
    (tmp_path / "psycopg").mkdir()
    (tmp_path / "psycopg" / "__init__.py").write_text("raise ImportError('no pq wrapper available')")
    said = run(
        """
from dibs import Dibs
from dibs.errors import MissingDriver
try:
    Dibs("postgresql://localhost/x")
except MissingDriver as error:
    print(error)
""",
        cwd=tmp_path,
    )
    assert "no pq wrapper available" in said
    assert "pip install 'dibs[postgres]'" in said


# The place of a file


UNPRIVILEGED = """
import os, sys
from dibs import Dibs
from dibs.errors import DibsError
url, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
app = Dibs(url)  # and so all that is read of the package is read
task = app.task(name="t")(lambda: None)
if uid != os.getuid():
    os.setgroups([]), os.setgid(gid), os.setuid(uid)
try:
    task.enqueue()
except DibsError as error:
    print(f"{type(error).__name__}: {error}")
"""


def as_nobody(url: str) -> str:
    """What adding a job says to a user without privileges, who may not write what is read-only."""
    user = unprivileged()
    command = [sys.executable, "-c", UNPRIVILEGED, url, str(user.uid), str(user.gid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.slow
def test_a_directory_that_cannot_be_written(open_path: Path) -> None:
    open_path.chmod(0o555)
    said = as_nobody(f"sqlite:///{open_path}/x.db")
    assert said.startswith(f"ReadOnlyDatabase: The directory {open_path} cannot be written by this user")
    assert list(open_path.iterdir()) == []


@pytest.mark.slow
def test_a_link_in_a_directory_that_cannot_be_written(open_path: Path) -> None:
    """SQLite follows it, and writes where it leads."""
    for name in ("here", "there"):
        (open_path / name).mkdir()
        (open_path / name).chmod(0o777)
    (open_path / "here/x.db").symlink_to(open_path / "there/x.db")
    (open_path / "here").chmod(0o555)
    assert as_nobody(f"sqlite:///{open_path}/here/x.db") == ""
    assert (open_path / "there/x.db").exists()
    (open_path / "there").chmod(0o555)
    said = as_nobody(f"sqlite:///{open_path}/here/x.db")
    assert said.startswith(f"ReadOnlyDatabase: The directory {open_path}/there cannot be written by this user")


@pytest.mark.slow
def test_a_file_that_cannot_be_written(open_path: Path) -> None:
    file = open_path / "x.db"
    app = Dibs(f"sqlite:///{file}")
    app.migrate()
    app.close()
    file.chmod(0o444)
    said = as_nobody(f"sqlite:///{file}")
    assert said == f"ReadOnlyDatabase: {file} cannot be written by this user. Check its owner and permissions."
    assert count_jobs(app) == 0
    app.close()


@pytest.mark.slow
def test_a_directory_that_cannot_be_entered(open_path: Path) -> None:
    (open_path / "closed").mkdir(mode=0o700)
    if os.geteuid() != 0:
        (open_path / "closed").chmod(0)
    said = as_nobody(f"sqlite:///{open_path}/closed/x.db")
    assert said.startswith("ReadOnlyDatabase: ")
    (open_path / "closed").chmod(0o700)


def test_a_directory_that_there_is_not(tmp_path: Path) -> None:
    app = Dibs(f"sqlite:///{tmp_path}/nowhere/x.db")
    fails(app, DatabaseMissing, "nowhere does not exist. Create it, or choose another file")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_instead_of_a_file(tmp_path: Path) -> None:
    fails(Dibs(f"sqlite:///{tmp_path}"), NotADatabase, "is a directory. Name a file in it: sqlite:///")


@pytest.mark.parametrize("content", [b"It was a dark and stormy night. " * 100, b"%PDF-1.7", os.urandom(5000)])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "novel.txt"
    file.write_bytes(content)
    fails(Dibs(f"sqlite:///{file}"), NotADatabase, "is not a SQLite database.*Choose another file")
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (content, [file])


def test_a_database_that_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    app = Dibs(f"sqlite:///{file}")
    app.migrate()
    app.close()
    content = bytearray(file.read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    file.write_bytes(content)
    fails(app, NotADatabase, "malformed|not a database")


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    app = Dibs(f"sqlite:///{tmp_path}/x.db")
    assert declare(app).enqueue(data=1).created
    app.close()


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def write(lines: str) -> None:
        table = tmp_path / "mounts"
        table.write_text(lines)
        monkeypatch.setattr(connection, "file_system", partial(connection.file_system, mounts=str(table)))

    return write


@pytest.mark.parametrize("kind", sorted(connection.NETWORK))
def test_a_network_file_system(tmp_path: Path, mounts: Callable[[str], None], kind: str) -> None:
    mounts(f"/dev/sda1 / ext4 rw 0 0\nserver:/home {tmp_path} {kind} rw 0 0\n")
    app = Dibs(f"sqlite:///{tmp_path}/x.db")
    fails(app, UnsafeFileSystem, f"network file system .{kind}.*Use a local disk, or PostgreSQL.*network=allow")
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize("link", ["a file", "a directory"])
def test_a_link_to_a_network_file_system(tmp_path: Path, mounts: Callable[[str], None], link: str) -> None:
    (tmp_path / "far").mkdir()
    mounts(f"/dev/sda1 / ext4 rw 0 0\nserver:/home {tmp_path}/far nfs rw 0 0\n")
    near = tmp_path / ("x.db" if link == "a file" else "near")
    near.symlink_to(tmp_path / "far" / ("x.db" if link == "a file" else ""))
    app = Dibs(f"sqlite:///{near if link == 'a file' else near / 'x.db'}")
    fails(app, UnsafeFileSystem, f"{tmp_path}/far/x.db lies on a network file system .nfs.")
    assert list((tmp_path / "far").iterdir()) == []


def test_a_network_file_system_that_is_allowed(tmp_path: Path, mounts: Callable[[str], None]) -> None:
    mounts(f"server:/home {tmp_path} nfs4 rw 0 0\n")
    app = Dibs(f"sqlite:///{tmp_path}/x.db?network=allow")
    assert declare(app).enqueue(data=1).created
    app.close()


def test_which_file_system_a_folder_lies_on(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    spaced = tmp_path / "my files"
    escaped = str(spaced).replace(" ", "\\040")
    table.write_text(
        f"/dev/sda1 / ext4 rw 0 0\nserver:/a {tmp_path} nfs rw 0 0\n"
        f"/dev/sdb1 {tmp_path}/local xfs rw 0 0\nserver:/b {escaped} cifs rw 0 0\n"
    )
    found = {
        name: connection.file_system(Path(name), mounts=str(table))
        for name in ["/", f"{tmp_path}/x", f"{tmp_path}/local/x", f"{tmp_path}/localized", str(spaced / "deep")]
    }
    assert list(found.values()) == ["ext4", "nfs", "xfs", "nfs", "cifs"]
    assert connection.file_system(tmp_path, mounts=f"{tmp_path}/nothing") == ""


@pytest.mark.slow
@pytest.mark.system("root")
def test_a_disk_that_is_full() -> None:
    with small_disk(kilobytes=1000) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(400_000))
        url = f"sqlite:///{disk}/x.db"
        app = Dibs(url)
        task, added = declare(app), 0
        with pytest.raises(DiskFull, match=r"no room left for .*x\.db\. Nothing was written\. Free some space"):  # noqa: PT012
            while True:
                task.enqueue(data="x" * 50_000)
                added += 1
        assert added > 0
        assert (count_jobs(app), nothing_is_locked(url)) == (added, True)
        filler.unlink()
        task.enqueue(data="x" * 50_000)
        assert count_jobs(app) == added + 1
        app.close()
        with closing(sqlite3.connect(disk / "x.db")) as raw:
            assert raw.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
@pytest.mark.system("root")
@pytest.mark.parametrize("left", [0, 4096, 20_000, 40_000])
def test_a_disk_that_was_full_before(left: int) -> None:
    with small_disk(kilobytes=400) as disk:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "filler").write_bytes(bytes(free - left))
        fails(Dibs(f"sqlite:///{disk}/x.db"), DiskFull, "There is no room left")


@pytest.mark.slow
@pytest.mark.system("root")
def test_a_server_whose_disk_is_full(own_postgres: OwnServer) -> None:
    server = own_postgres(POSTGRES)
    with small_disk(kilobytes=20_000) as disk:
        folder = disk / "data"
        folder.mkdir()
        os.chown(folder, *unprivileged().ids)
        server.execute(f"create tablespace small location '{folder}'")
        server.execute("create database small tablespace small template template0")
        fill_up(server.url("small"))
        server.stop("immediate")


def fill_up(url: str) -> None:
    app = Dibs(url)
    app.migrate()
    task, added = declare(app), 0
    with pytest.raises(DiskFull, match=r"has no room left: .*Nothing was written"):  # noqa: PT012
        while True:
            task.enqueue(data=os.urandom(300_000).hex())
            added += 1
    assert (count_jobs(app), nothing_is_locked(url)) == (added, True)
    app.close()


# Locks


@pytest.mark.slow
@on_sqlite
def test_a_file_that_somebody_else_has_locked(url: str) -> None:
    app = Dibs(url, deadline=0.2)
    app.migrate()
    with closing(sqlite3.connect(urlsplit(url).path[1:], isolation_level=None)) as holder:
        holder.execute("begin immediate")
        fails(app, DatabaseLocked, "Another program holds the write lock of .*Is a shell or a long transaction open")
        assert count_jobs(app) == 0  # readers are let in
        holder.execute("rollback")
    assert nothing_is_locked(url)
    assert app.tasks.popitem()[1] is not None
    assert declare(app).enqueue(data=1).created
    app.close()


@pytest.mark.slow
@on_sqlite
def test_a_new_file_that_somebody_else_has_locked(url: str) -> None:
    app = Dibs(url, deadline=0.2)
    with closing(sqlite3.connect(urlsplit(url).path[1:], isolation_level=None)) as holder:
        holder.execute("begin exclusive")
        fails(app, DatabaseLocked, "Another program holds the write lock")
        holder.execute("rollback")
    app.tasks.clear()
    assert declare(app).enqueue(data=1).created
    app.close()


@on_sqlite
def test_a_new_file_is_waited_for_as_long_as_the_write_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.engines.sqlite.connection.LONGEST_PAUSE", 0.0001)
    often = threading.Event()

    class Counting(sqlite3.Connection):
        asked = 0

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if "journal_mode" in sql:
                Counting.asked += 1
                if Counting.asked == 1_000:
                    often.set()
            return super().execute(sql, parameters)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Counting))
    app = Dibs(url)
    holder = sqlite3.Connection(urlsplit(url).path[1:], isolation_level=None, check_same_thread=False)
    with closing(holder), ThreadPoolExecutor() as pool:
        holder.execute("begin exclusive")
        added = pool.submit(declare(app).enqueue, data=1)
        added.add_done_callback(lambda _: often.set())
        assert often.wait(60)
        assert not added.done()
        holder.execute("rollback")
        assert added.result().created
    app.close()


def at_work(url: str) -> list[tuple[Any, ...]]:
    """Our sessions on that database that do something, or wait for something."""
    with psycopg.connect(url, autocommit=True) as looker:
        return looker.execute(
            "select state, wait_event_type, query from pg_stat_activity"
            " where datname = current_database() and application_name = 'dibs' and state <> 'idle'"
        ).fetchall()


@pytest.mark.slow
@on_postgres
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_table_that_somebody_else_has_locked(url: str, kind: str) -> None:
    """Whoever gave up has left nothing behind: nothing that waits, nothing that is written when the lock goes."""
    app = Dibs(url, deadline=0.3)
    task = declare(app)
    before = task.using(unique_key="before").enqueue(data=1)

    def add(task: Any) -> None:
        if kind == "sync":
            task.enqueue(data=1)
        else:
            asyncio.run(_add_and_close(task, app))

    with closing(psycopg.connect(url)) as holder:
        holder.execute("lock table dibs.jobs in access exclusive mode")
        for each in (task, task.using(unique_key="k")):
            with pytest.raises(DeadlineExceeded, match=r"Gave up after 0\.3 s"):
                add(each)
            assert at_work(url) == []
        holder.rollback()
    assert [job.id for job in app.engine.run(jobs.page(Filter())).jobs] == [before.id]
    assert nothing_is_locked(url)
    assert task.using(unique_key="k").enqueue(data=1).created
    app.close()


async def _add_and_close(task: Any, app: Dibs) -> None:
    try:
        await task.aenqueue(data=1)
    finally:
        await app.aclose()


# Payloads


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


PAYLOADS: dict[str, tuple[Any, type[InvalidPayload], str]] = {
    "too large": (
        "x" * MIB,
        PayloadTooLarge,
        "1,048,576 are allowed. Store large data elsewhere .* or raise max_payload",
    ),
    "NUL": ("a\x00b", InvalidPayload, r"data contains the character \\u0000, which databases cannot store. Remove it"),
    "NUL in a key": ({"a\x00": 1}, InvalidPayload, r"a key of payload.data contains the character \\u0000"),
    "NaN": ([1.0, float("nan")], InvalidPayload, r"data\[1\] is nan, which JSON does not have. Use null or a text"),
    "infinity": ({"a": float("inf")}, InvalidPayload, "data.a is inf"),
    "minus infinity": (float("-inf"), InvalidPayload, "data is -inf"),
    "a number as key": ({1: "a"}, InvalidPayload, "data has the key 1: keys must be texts"),
    "null as key": ({"a": [{None: "a"}]}, InvalidPayload, r"data.a\[0\] has the key None: keys must be texts"),
    "a pair as key": ({(1, 2): "a"}, InvalidPayload, "keys must be texts"),
    "too deep": (nested(100), InvalidPayload, "nested deeper than 100 levels. Flatten it or store it elsewhere"),
    "a depth bomb": (nested(100_000), InvalidPayload, "cannot be written as JSON|nested deeper"),
    "an endless list": (endless(), InvalidPayload, "cannot be written as JSON|nested deeper"),
    "half a surrogate pair": (
        "\ud83d",
        InvalidPayload,
        "data contains half of a surrogate pair, which is no valid text",
    ),
    "half a pair in a key": ({"\udc00": 1}, InvalidPayload, "a key of payload.data contains half of a surrogate pair"),
    "a number over 64 bits": (2**64, InvalidPayload, "data is a whole number over 64 bits. Use a text"),
    "a number under 64 bits": (-(2**63) - 1, InvalidPayload, "over 64 bits"),
    "an object": (object(), InvalidPayload, "cannot be written as JSON"),
    "a function": ([print], InvalidPayload, "cannot be written as JSON"),
}


@pytest.mark.parametrize("case", PAYLOADS)
def test_a_payload_that_cannot_be_stored(url: str, app: Dibs, case: str) -> None:
    data, error, says = PAYLOADS[case]
    task = declare(app)
    with pytest.raises(error, match=says):
        task.enqueue(data=data)
    with pytest.raises(error, match=says):
        task.using(unique_key="k").enqueue(data=data)
    with pytest.raises(error, match=says):
        app.enqueue_many(task.call(data=each) for each in [1, 2, data])
    assert (count_jobs(app), nothing_is_locked(url)) == (0, True)
    assert task.using(unique_key="k").enqueue(data=1).created


def test_a_payload_that_can_just_be_stored(app: Dibs) -> None:
    task = declare(app)
    for data in ("x" * (MIB - len('{"data":""}')), nested(99), 2**64 - 1, -(2**63), "\U0001f600", {"": ""}, 5e-324):
        assert app.get(task.enqueue(data=data).id).payload == {"data": data}


def test_the_limit_is_in_bytes_and_a_setting(url: str) -> None:
    app = Dibs(url, max_payload=20)
    task = declare(app)
    task.enqueue(data="ü" * 4)
    with pytest.raises(PayloadTooLarge, match="21 bytes of JSON, and 20 are allowed"):
        task.enqueue(data="ü" * 5)
    assert (count_jobs(app), nothing_is_locked(url)) == (1, True)
    app.close()


# Options


HUGE = 10**400  # more than a float can hold
KATHMANDU = timezone(timedelta(hours=5, minutes=45))

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "priority under": ({"priority": -1}, "priority: must be between 0 and 9, not -1"),
    "priority over": ({"priority": 10}, "priority: must be between 0 and 9, not 10"),
    "priority far over": ({"priority": HUGE}, "priority: must be between 0 and 9"),
    "priority true": ({"priority": True}, "priority: must be a whole number, not True"),
    "priority half": ({"priority": 4.5}, "priority: must be a whole number, not 4.5"),
    "priority text": ({"priority": "9"}, "priority: must be a whole number, not '9'"),
    "priority none": ({"priority": None}, "priority: must be a whole number, not None"),
    "queue long": ({"queue": "q" * 201}, "queue: has 201 characters, and 200 are allowed"),
    "queue empty": ({"queue": ""}, "queue: must be a text that is not empty"),
    "queue number": ({"queue": 7}, "queue: must be a text"),
    "queue NUL": ({"queue": "a\x00b"}, "queue: .* has control characters"),
    "queue newline": ({"queue": "a\nb"}, "queue: .* has control characters"),
    "queue surrogate": ({"queue": "\ud800"}, "queue: .* lone surrogates"),
    "key long": ({"unique_key": "k" * 201}, "unique_key: has 201 characters, and 200 are allowed"),
    "key surrogate": ({"unique_key": "\udfff"}, "unique_key: .* lone surrogates"),
    "tag long": ({"tags": ["t" * 201]}, "tags: has 201 characters, and 200 are allowed"),
    "tags many": ({"tags": ["t"] * 21}, "tags: has 21, and 20 are allowed"),
    "attempts none": ({"max_attempts": 0}, "max_attempts: must be between 1 and 10000, not 0"),
    "attempts many": ({"max_attempts": 10_001}, "max_attempts: must be between 1 and 10000"),
    "delay negative": ({"delay": -1}, "delay: must be between 0"),
    "delay NaN": ({"delay": float("nan")}, "delay: must be between 0"),
    "delay for ever": ({"delay": float("inf")}, "delay: must be between 0"),
    "delay far over": ({"delay": HUGE}, "delay: must be between 0"),
    "delay of years": ({"delay": timedelta(days=800)}, "delay: must be between 0"),
    "period negative": ({"unique_key": "k", "unique_for": -1}, "unique_for: must be between 0"),
    "time naive": (
        {"run_at": datetime(2030, 1, 1)},
        "run_at: has no time zone; use datetime.now.UTC. or give it a tzinfo",
    ),
    "time before 1970": (
        {"run_at": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)},
        "run_at: 1969.* is not between 1970 and 9999",
    ),
    "time before 1970 elsewhere": (
        {"run_at": datetime(1970, 1, 1, 5, tzinfo=KATHMANDU)},
        "run_at: 1970.*is not between",
    ),
    "time of the year 1": ({"run_at": datetime.min.replace(tzinfo=KATHMANDU)}, "run_at: 0001"),
    "time after 9999": ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at: 9999.* is not between 1970 and 9999"),
    "time a number": ({"run_at": 1e9}, "run_at: must be a datetime, not 1000000000.0"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_that_is_out_of_range(url: str, app: Dibs, case: str) -> None:
    options, says = OPTIONS[case]
    task = declare(app)
    with pytest.raises(InvalidOption, match=says) as caught:
        task.using(**options).enqueue(data=1)
    assert caught.value.option in options
    assert isinstance(caught.value, InvalidJob | ValueError)
    assert (count_jobs(app), nothing_is_locked(url)) == (0, True)


def test_the_names_and_times_that_can_just_be_stored(app: Dibs) -> None:
    name = "𝄞" * 200
    task = app.task(name=name)(lambda: None)
    edge = datetime(9999, 12, 31, tzinfo=UTC)
    job = task.using(queue=name, unique_key=name, tags=[name] * 20, run_at=edge).enqueue()
    found = app.get(job.id)
    assert (found.type, found.queue, found.unique_key, found.tags, found.run_at) == (
        name,
        name,
        name,
        (name,) * 20,
        edge,
    )
    early = task.using(run_at=datetime(1970, 1, 1, tzinfo=UTC)).enqueue()
    assert early.run_at == early.created_at


@pytest.mark.parametrize("limit", [-1, 0, HUGE])
def test_a_limit_that_is_out_of_range(url: str, app: Dibs, limit: int) -> None:
    with pytest.raises(InvalidOption, match="limit"):
        app.engine.run(jobs.page(Filter(), limit=limit))
    with pytest.raises(InvalidOption, match="limit"):
        app.engine.run(turn(Want(7, 1, limit, [])))
    if limit:
        with pytest.raises(InvalidOption, match="limit: must be between 0"):
            app.drain(limit=limit)
    assert nothing_is_locked(url)


@pytest.mark.parametrize("number", [HUGE, -HUGE, -1])
def test_an_id_that_is_out_of_range(app: Dibs, number: int) -> None:
    with pytest.raises(LookupError):
        app.get(number)
    with pytest.raises(LookupError):
        app.retry(number)
    assert app.cancel(number) is False


def test_a_setting_that_is_out_of_range() -> None:
    with pytest.raises(ConfigError, match="max_payload"):
        Dibs("sqlite:///x.db", max_payload=HUGE)
