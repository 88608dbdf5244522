"""`dibs serve` and `dibs tokens`."""

import json

import pytest

from dibs import Dibs
from tests.apps import on_one
from tests.cli.commands import Shell

APP = """
from dibs import Dibs
app = Dibs({url!r})
"""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])  # noqa: S104  # refused
def test_nobody_else_is_let_in_without_a_token(shell: Shell, host: str) -> None:
    result = shell.dibs("serve", "sqlite:///shop.db", "--host", host)
    assert result.exit_code == 1
    assert "there is no token" in result.output
    assert "dibs tokens create" in result.output


def test_tokens_are_made_listed_and_revoked(shell: Shell, url: str) -> None:
    name = f"{shell.write(APP.format(url=url))}:app"
    assert shell.dibs("tokens", "list", name).output.startswith("no tokens")
    made = shell.dibs("tokens", "create", name, "website", "--scope", "read", "--scope", "enqueue").output.strip()
    assert made.startswith("dibs_")
    listed = json.loads(shell.dibs("tokens", "list", name, "--json").output)
    assert [(each["name"], each["scopes"]) for each in listed] == [("website", ["enqueue", "read"])]
    assert made not in shell.dibs("tokens", "list", name, "--json").output
    again = shell.dibs("tokens", "create", name, "website", "--scope", "read")
    assert (again.exit_code, "another token" in again.output) == (1, True)
    second = json.loads(shell.dibs("tokens", "create", name, "ci", "--scope", "work", "--json").output)
    assert second["scopes"] == ["work"]
    assert "website" in shell.dibs("tokens", "list", name).output
    assert shell.dibs("tokens", "revoke", name, "website").output == "revoked website\n"
    assert json.loads(shell.dibs("tokens", "revoke", name, "ci", "--json").output) == {"revoked": "ci"}
    gone = shell.dibs("tokens", "revoke", name, "website")
    assert (gone.exit_code, "no token named 'website'" in gone.output) == (1, True)


def test_mistakes(shell: Shell) -> None:
    shell.dibs("db", "migrate", "sqlite:///shop.db")
    assert shell.dibs("tokens", "create", "sqlite:///shop.db", "x").exit_code == 2
    assert shell.dibs("tokens", "create", "sqlite:///shop.db", "x", "--scope", "all").exit_code == 2
    assert shell.dibs("tokens", "create", "sqlite:///shop.db", "--scope", "read").exit_code == 2
    assert shell.dibs("serve", "sqlite:///shop.db", "--port", "70000").exit_code == 2


@on_one
def test_what_nobody_may_see_is_not_shown(shell: Shell, url: str) -> None:
    app = Dibs(url)

    @app.task(name="login")
    def login(user: str, password: str) -> dict[str, str]:
        return {"secret": password}

    job = login.enqueue(user="ada", password="hunter2")
    app.drain()
    app.close()
    for arguments in (
        ["jobs", "show", url, str(job.id)],
        ["jobs", "show", url, str(job.id), "--json"],
        ["jobs", "list", url, "--json"],
    ):
        output = shell.dibs(*arguments).output
        assert "ada" in output
        assert "hunter2" not in output
