"""`dibs db`: migrate, status, sql."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from dibs import Dibs
from dibs.engines.migrate import migrations
from tests.actors import Actors
from tests.apps import POSTGRES, SQLITE
from tests.cli.commands import Shell
from tests.servers.fixtures import FreshDatabase


@pytest.fixture(params=[SQLITE, POSTGRES])
def empty(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: FreshDatabase) -> str:
    """The address of a database without our tables."""
    return f"sqlite:///{tmp_path}/empty.db" if request.param == SQLITE else postgres_url(POSTGRES)


def test_migrate_says_what_it_did(shell: Shell, empty: str) -> None:
    first = shell.dibs("db", "migrate", empty)
    assert (first.exit_code, first.output) == (0, "".join(f"applied {step.title}\n" for step in migrations("sqlite")))
    second = shell.dibs("db", "migrate", empty)
    assert (second.exit_code, second.output) == (0, "nothing to do: the schema is up to date\n")


def test_status_says_what_is_missing(shell: Shell, empty: str) -> None:
    before = shell.dibs("db", "status", empty)
    assert (before.exit_code, before.output.split()) == (1, ["0001", "initial", "missing"])
    shell.dibs("db", "migrate", empty)
    after = shell.dibs("db", "status", empty)
    assert (after.exit_code, after.output.split()) == (0, ["0001", "initial", "applied"])


def test_status_for_machines(shell: Shell, empty: str) -> None:
    before = shell.dibs("db", "status", "--json", empty)
    assert (before.exit_code, json.loads(before.output)) == (1, [{"number": 1, "name": "initial", "applied": False}])
    for applied in (["0001 initial"], []):
        assert json.loads(shell.dibs("db", "migrate", empty, "--json").output) == {"applied": applied}
    assert json.loads(shell.dibs("db", "prune", empty, "--json").output) == {"freed": 0, "forgotten": 0}
    after = shell.dibs("db", "status", empty, "--json")
    assert (after.exit_code, json.loads(after.output)) == (0, [{"number": 1, "name": "initial", "applied": True}])


def test_status_creates_nothing(shell: Shell) -> None:
    assert shell.dibs("db", "status", "sqlite:///new.db").exit_code == 1
    assert not (shell.folder / "new.db").exists()


def test_the_sql_can_be_run_by_hand(shell: Shell, empty: str) -> None:
    script = shell.dibs("db", "sql", empty)
    assert script.exit_code == 0
    if empty.startswith("sqlite"):
        with closing(sqlite3.connect(empty.removeprefix("sqlite:///"))) as raw:
            raw.executescript(script.output)
    else:
        with psycopg.connect(empty, autocommit=True) as raw:
            raw.execute(script.output.encode())
    assert shell.dibs("db", "status", empty).exit_code == 0
    app = Dibs(empty)
    app.task(name="t")(lambda: 7).enqueue()
    assert app.drain().successful == 1
    app.close()


def test_the_sql_needs_no_database(shell: Shell) -> None:
    result = shell.dibs("db", "sql", "postgresql://nobody.invalid/x")
    assert result.exit_code == 0
    assert result.output.startswith("begin;\ncreate schema")
    assert result.output.endswith("commit;\n")


def test_the_sql_is_for_the_apps_schema(shell: Shell) -> None:
    name = shell.write('from dibs import Dibs\napp = Dibs("postgresql://nobody.invalid/x", schema="Jobs")')
    script = shell.dibs("db", "sql", f"{name}:app").output
    assert 'create schema if not exists "Jobs";' in script
    assert 'create table "Jobs".jobs' in script


@pytest.mark.parametrize("command", ["migrate", "status"])
def test_a_database_that_is_newer_is_refused(shell: Shell, url: str, command: str) -> None:
    app = Dibs(url)
    app.migrate()
    now = "clock_timestamp()" if app.engine.name == "postgres" else "0"
    Actors(app.engine).sql(f"insert into dibs.migrations (number, name, applied_at) values (9999, 'future', {now})")
    result = shell.dibs("db", command, url)
    assert result.exit_code == 1
    assert "9999" in result.output
    assert "Upgrade dibs here" in result.output
    app.close()


def test_a_wrong_password_is_not_shown(shell: Shell, fresh_url: Callable[[str], str]) -> None:
    url = fresh_url(POSTGRES).replace("//postgres@", "//guarded:s3cret@")
    result = shell.dibs("db", "status", url)
    assert result.exit_code == 1
    assert "does not accept the user or the password" in result.output
    assert "s3cret" not in result.output
