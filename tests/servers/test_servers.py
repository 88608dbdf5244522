"""The servers do what the tests rely on."""

import errno
import os
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.servers import POSTGRES, Leash, PgBouncer, Servers
from tests.servers.disks import small_disk
from tests.servers.fixtures import FreshDatabase, OwnServer
from tests.servers.postgres import GUARDED, PASSWORD, ServerFailed
from tests.servers.users import run_python_unprivileged


def ask(url: str, question: str) -> object:
    with psycopg.connect(url, prepare_threshold=None) as connection:
        row = connection.execute(question.encode()).fetchone()
    return row and row[0]


@pytest.mark.parametrize("server", POSTGRES)
def test_every_server_answers(server: str, postgres_url: FreshDatabase) -> None:
    version = str(ask(postgres_url(server), "show server_version"))
    assert version.split(".")[0] == server.removeprefix("postgres") or server in ("postgres-system", "postgres-url")


def test_servers_run_in_a_zone_which_is_not_utc(postgres_url: FreshDatabase) -> None:
    assert ask(postgres_url("postgres18"), "show timezone") == "Asia/Kathmandu"


def test_fresh_databases_are_separate(postgres_url: FreshDatabase) -> None:
    one, other = postgres_url("postgres18"), postgres_url("postgres18")
    with psycopg.connect(one) as connection:
        connection.execute("create table only_here ()")
    assert ask(other, "select to_regclass('only_here')") is None


def test_a_fresh_database_can_be_a_copy_of_a_template(postgres_servers: Servers, postgres_url: FreshDatabase) -> None:
    def prepare(url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("create table prepared ()")

    template = postgres_servers["postgres18"].template("prepared", prepare)
    assert template == postgres_servers["postgres18"].template("prepared", prepare)
    assert ask(postgres_url("postgres18", template=template), "select to_regclass('prepared')::text") == "prepared"


def test_a_database_is_dropped_under_its_clients(postgres_servers: Servers) -> None:
    server = postgres_servers["postgres18"]
    with server.fresh_database() as url:
        client = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        client.execute("select 1")
    client.close()


def test_one_role_needs_its_password(postgres_url: FreshDatabase) -> None:
    url = postgres_url("postgres18")
    guarded = url.replace("//postgres@", f"//{GUARDED}:%s@")
    assert ask(guarded % PASSWORD, "select current_user") == GUARDED
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(guarded % "wrong")


@pytest.mark.system("pgbouncer")
@pytest.mark.parametrize("server", POSTGRES)
def test_pgbouncer_passes_queries(server: str, pgbouncer_url: FreshDatabase) -> None:
    url = pgbouncer_url(server)
    assert ask(url, "select current_database()") == urlsplit(url).path.removeprefix("/")


@pytest.mark.slow
@pytest.mark.system("pgbouncer")
def test_pgbouncer_can_be_stopped(own_postgres: OwnServer) -> None:
    server = own_postgres("postgres18")
    bouncer = PgBouncer(server, server.leash, name="pgbouncer")
    bouncer.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(bouncer.url())


@pytest.mark.slow
def test_a_server_comes_back_with_what_was_committed(own_postgres: OwnServer) -> None:
    server = own_postgres("postgres18", durable=True, settings={"work_mem": "7MB"})
    server.execute("create table kept as select 1 as kept")
    server.restart()
    server.kill()
    assert not server.answers()
    server.start()
    assert server.execute("select kept from kept") == [(1,)]
    assert server.execute("show work_mem") == [("7MB",)]


@pytest.mark.slow
def test_a_killed_server_takes_its_busy_processes_along(own_postgres: OwnServer) -> None:
    server = own_postgres("postgres18")
    with closing(psycopg.connect(server.url())) as client:
        client.pgconn.send_query(b"select count(*) from generate_series(1, 1000000000)")
        server.kill()
    server.start()  # which PostgreSQL refuses while a process of the old server is there


@pytest.mark.slow
@pytest.mark.parametrize("version", ["postgres16", "postgres18"])
def test_a_lagging_standby_can_be_promoted(version: str, own_postgres: OwnServer) -> None:
    primary = own_postgres(version)
    standby = primary.standby()
    primary.execute("create table written as select 1 as n")
    standby.catch_up(primary)
    standby.cut_off()
    primary.execute("insert into written values (2)")
    primary.kill()
    standby.promote()
    standby.execute("insert into written values (3)")
    assert standby.execute("select n from written order by n") == [(1,), (3,)]


@pytest.mark.slow
def test_a_server_that_cannot_start_shows_its_log(own_postgres: OwnServer) -> None:
    for _each_time in range(2):
        with pytest.raises(ServerFailed, match="unrecognized configuration parameter"):
            own_postgres("postgres18", settings={"no_such_setting": "1"})


def test_the_end_of_a_leash_is_the_end_of_its_processes(tmp_path: Path) -> None:
    with Leash.hold() as leash:
        guard = leash.start(["sleep", "600"], log=tmp_path / "log")
        assert guard.poll() is None
    assert guard.poll() is not None
    assert not leash.folder.exists()


def test_an_unprivileged_user_cannot_write_what_is_read_only(open_path: Path) -> None:
    open_path.chmod(0o555)
    done = run_python_unprivileged("open('file', 'w')", cwd=open_path)
    open_path.chmod(0o755)
    assert "PermissionError" in done.stderr


def test_an_unprivileged_user_can_write_their_own_folder(open_path: Path) -> None:
    source = "import sqlite3; sqlite3.connect('jobs.db').execute('create table job (id)')"
    done = run_python_unprivileged(source, cwd=open_path, modules=["sqlite3"])
    assert (done.returncode, done.stderr) == (0, "")
    assert (open_path / "jobs.db").stat().st_size > 0


@pytest.mark.system("root")
def test_a_small_disk_is_soon_full() -> None:
    with small_disk(kilobytes=64) as disk, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (disk / "file").write_bytes(bytes(100_000))
    assert not disk.exists()
