"""The command `dibs`: its help, what it works on, and what it says to a user's mistake."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

import dibs
from dibs.cli.main import COMMANDS
from dibs.cli.main import dibs as command_line
from tests.cli.commands import PROGRAM, Shell

APP = """
from dibs import Dibs
app = Dibs("sqlite:///shop.db")
"""


def commands(of: click.Command = command_line, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(of, click.Group):
        context = click.Context(of)
        for name in of.list_commands(context):
            command = of.get_command(context, name)
            assert command is not None
            yield from commands(command, (*path, name))
    else:
        yield path


EVERY = [*commands()]
WORKING = [["db", "status"], ["drain"]]


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help_with_an_example(shell: Shell, path: tuple[str, ...], option: str) -> None:
    result = shell.dibs(*path, option)
    assert result.exit_code == 0
    assert f"Example: dibs {' '.join(path)}" in result.output
    assert "\b" not in result.output


def test_the_examples_are_options_that_there_are(shell: Shell) -> None:
    for path in EVERY:
        text = shell.dibs(*path, "--help").output
        example = next(line for line in text.splitlines() if "Example:" in line)
        assert set(re.findall(r"--\w+", example)) <= set(re.findall(r"--\w+", text.replace(example, "")))


def test_help_lists_the_commands(shell: Shell) -> None:
    result = shell.dibs("--help")
    assert result.exit_code == 0
    assert {"db", "drain"} <= set(result.output.split())
    assert "DIBS_APP" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_each_command_what_it_says_itself(name: str) -> None:
    command = command_line.get_command(click.Context(command_line), name)
    assert command is not None
    assert command.help is not None
    assert " ".join(command.help.split()).startswith(COMMANDS[name])


@pytest.mark.parametrize("code", ["import dibs.cli.main", "import dibs"])
def test_help_and_import_load_no_worker_and_no_driver(code: str) -> None:
    program = f"{code}; import sys; print(*[name for name in ('asyncio', 'sqlite3', 'psycopg') if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("\n", "")


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_for_every_shell(shell: Shell, shell_name: str) -> None:
    result = shell.dibs("completion", shell_name)
    assert result.exit_code == 0
    assert "_DIBS_COMPLETE" in result.output


@pytest.mark.parametrize(
    "words, expected",
    [("dibs wor", {"worker", "workers"}), ("dibs jobs ca", {"cancel"}), ("dibs worker --conc", {"--concurrency"})],
)
def test_what_is_completed(shell: Shell, words: str, expected: set[str]) -> None:
    environment = {"_DIBS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    said = subprocess.run([PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)
    assert {line.rpartition(",")[2] for line in said.stdout.split()} == expected


def test_the_version(shell: Shell) -> None:
    assert dibs.__version__ in shell.dibs("--version").output


def test_a_command_that_there_is_not(shell: Shell) -> None:
    result = shell.dibs("drian")
    assert result.exit_code == 2
    assert "drian" in result.output


# What it works on


@pytest.mark.parametrize("command", WORKING, ids=" ".join)
def test_without_an_app_it_asks_for_one(shell: Shell, command: list[str]) -> None:
    result = shell.dibs(*command)
    assert result.exit_code == 2
    assert "Which app? Say module:attribute" in result.output


@pytest.mark.parametrize("target", ["shop", "shop:", ":app", "shop.db"])
def test_a_target_that_is_neither(shell: Shell, target: str) -> None:
    result = shell.dibs("drain", target)
    assert result.exit_code == 2
    assert "neither module:attribute (like shop.jobs:app) nor a database URL" in result.output


def test_an_app_by_module_and_attribute(shell: Shell) -> None:
    assert shell.dibs("db", "migrate", f"{shell.write(APP)}:app").output == "applied 0001 initial\n"


def test_an_app_in_a_package(shell: Shell) -> None:
    package = shell.folder / "package_of_this_test"
    package.mkdir()
    (package / "jobs.py").write_text(APP)
    assert shell.dibs("db", "migrate", "package_of_this_test.jobs:app").exit_code == 0


def test_an_app_from_the_environment(shell: Shell) -> None:
    name = shell.write(APP)
    assert shell.dibs("db", "migrate", DIBS_APP=f"{name}:app").exit_code == 0
    assert shell.dibs("db", "status", "sqlite:///other.db", DIBS_APP=f"{name}:app").exit_code == 1  # the argument wins


def test_a_url_instead_of_an_app(shell: Shell) -> None:
    assert shell.dibs("db", "migrate", "sqlite:///x.db").exit_code == 0
    assert (shell.folder / "x.db").exists()


# Mistakes


@pytest.mark.parametrize(
    "source, said",
    [
        ("import nothing_of_that_name\n", "No module named 'nothing_of_that_name' ({name}.py, line 1)"),
        ("\nvalue = {{}}['key']\n", "KeyError: 'key' ({name}.py, line 2)"),
        ("def broken(:\n", "SyntaxError: invalid syntax ({name}.py, line 1)"),
        ("from dibs import Nothing\n", "cannot import name 'Nothing'"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 ({name}.py, line 2)"),
        ("raise ValueError('boom')\n", "ValueError: boom ({name}.py, line 1)"),
    ],
)
def test_a_module_that_raises_while_it_is_imported(shell: Shell, source: str, said: str) -> None:
    """The error in one line, where it was, and how to see all of it."""
    name = shell.write(source.replace("{{}}", "{}"))
    result = shell.dibs("drain", f"{name}:app")
    assert result.exit_code == 1
    assert f"Importing '{name}' failed: " in result.output
    assert said.format(name=name) in result.output
    assert f"python -c 'import {name}'" in result.output
    assert "project's directory" not in result.output


@pytest.mark.parametrize("target", ["shop_nowhere:app", "shop_nowhere.jobs:app", "dibs.nowhere:app"])
def test_a_module_that_there_is_not(shell: Shell, target: str) -> None:
    result = shell.dibs("drain", target)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: Cannot import '{target.partition(':')[0]}'")
    assert "Are you in the project's directory?" in result.output


@pytest.mark.parametrize(
    "attribute, said",
    [
        ("nothing", "there is no such attribute"),
        ("number", "it is a int"),
        ("none", "it is a NoneType"),
        ("Dibs", "it is a type"),
    ],
)
def test_an_attribute_that_is_no_app(shell: Shell, attribute: str, said: str) -> None:
    name = shell.write(APP + "number = 7\nnone = None\n")
    result = shell.dibs("drain", f"{name}:{attribute}")
    assert result.exit_code == 1
    assert f"{name}:{attribute} is not a Dibs app: {said}." in result.output


@pytest.mark.parametrize(
    "source, said",
    [
        ('from dibs import Dibs\napp = Dibs("mysql://a/b")', "I do not know databases of the kind 'mysql'"),
        ('from dibs import Dibs\napp = Dibs("sqlite:///x.db", lease=1)', "lease"),
        (APP + "@app.task\ndef f(*args): ...\n", "takes arguments by name"),
    ],
)
def test_an_app_that_is_set_up_wrongly(shell: Shell, source: str, said: str) -> None:
    result = shell.dibs("drain", f"{shell.write(source)}:app")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert said in result.output


@pytest.mark.parametrize("command", [["db", "migrate"], ["db", "status"], ["drain"]], ids=" ".join)
@pytest.mark.parametrize(
    "url, said",
    [
        ("mysql://localhost/x", "Use sqlite:///"),
        ("sqlite:////nowhere/at/all.db", "The directory /nowhere/at does not exist"),
        ("postgresql://127.0.0.1:1/x", "No PostgreSQL answers at 127.0.0.1:1/x"),
    ],
)
def test_a_database_that_cannot_be_had(shell: Shell, command: list[str], url: str, said: str) -> None:
    source = f"from dibs import Dibs\napp = Dibs({url!r})\n@app.task\ndef f(): ...\n"
    result = shell.dibs(*command, f"{shell.write(source)}:app")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert said in result.output


@pytest.mark.slow
def test_the_real_program(shell: Shell) -> None:
    name = shell.write(APP)
    done = shell.real("db", "migrate", f"{name}:app")
    assert (done.returncode, done.stdout, done.stderr) == (0, "applied 0001 initial\n", "")
    wrong = shell.real("db", "status", f"{shell.write('raise ValueError')}:app")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("Error: Importing ")
    assert "Traceback" not in wrong.stderr
