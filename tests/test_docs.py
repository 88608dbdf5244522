"""What is written is true and complete: examples run, and every setting, option, command and error is documented."""

import dataclasses
import doctest
import gc
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import dibs
from dibs import Dibs, Task, config, errors
from dibs.cli.main import dibs as command_line
from dibs.config import Settings
from dibs.task import Options

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
WORDS = "\n".join(page.read_text() for page in PAGES)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def modules() -> Iterator[Any]:
    yield dibs
    for found in pkgutil.walk_packages(dibs.__path__, "dibs."):
        yield importlib.import_module(found.name)


def examples() -> list[Any]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [example for module in modules() for example in finder.find(module) if example.examples]
    unique = {(example.filename, example.lineno): example for example in found}
    return [pytest.param(example, id=example.name) for example in unique.values()]


@pytest.mark.parametrize("example", examples())
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_example_is_true(example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    runner = doctest.DocTestRunner()
    result = runner.run(example, out=said.append)
    gc.collect()  # examples do not close what they open
    assert result.failed == 0, "".join(said)


def test_there_are_examples_where_users_look() -> None:
    names = [param.id for param in examples()]
    for name in (
        "app.Dibs",
        "app.Dibs.task",
        "app.Dibs.commands",
        "workplace.Workplace.drain",
        "app.Dibs.enqueue_many",
        "calls.Task.using",
    ):
        assert f"dibs.{name}" in names


@pytest.mark.slow
def test_the_first_program_of_the_readme_runs(tmp_path: Path) -> None:
    program, *_ = PYTHON.findall((ROOT / "README.md").read_text())
    (tmp_path / "shop.py").write_text(program)
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("claimed 101 of 101 jobs in ")
    assert done.stdout.endswith("mailed 7 in en\n")


# Docstrings


@pytest.mark.parametrize("module", [*modules()], ids=lambda module: module.__name__)
def test_a_module_says_why_it_exists(module: Any) -> None:
    assert module.__doc__


@pytest.mark.parametrize("name", dibs.__all__)
def test_a_public_name_is_explained(name: str) -> None:
    assert inspect.getdoc(getattr(dibs, name))


@pytest.mark.parametrize("of", [Dibs, Task])
def test_every_public_method_is_explained(of: type) -> None:
    public = {name: value for name, value in vars(of).items() if not name.startswith("_") and callable(value)}
    assert public
    assert [name for name, value in public.items() if not value.__doc__] == []


def test_a_method_and_its_async_twin_take_the_same_arguments() -> None:
    for of in (Dibs, Task):
        for name, twin in vars(of).items():
            if inspect.iscoroutinefunction(twin) and not name.startswith("_"):
                original = getattr(of, name.removeprefix("a"))
                assert inspect.signature(twin) == inspect.signature(original), name


# Errors


def error_classes() -> dict[str, type]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.DibsError)
    }


def drawn(text: str) -> dict[str, str | None]:
    """The tree as it is drawn: each class, and the one that it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"^([│├└─ ]*)([A-Z]\w+)\b", line):
            depth = len(match[1]) // 4
            if not path and match[2] != "DibsError":
                continue
            path[depth:] = [match[2]]
            parents[match[2]] = path[depth - 1] if depth else None
    return parents


@pytest.mark.parametrize(
    "where", [errors.__doc__, (ROOT / "docs/reference/errors.md").read_text()], ids=["code", "docs"]
)
def test_the_tree_of_errors_is_drawn_as_it_is(where: str) -> None:
    real = {
        name: next((base.__name__ for base in error.__bases__ if issubclass(base, errors.DibsError)), None)
        for name, error in error_classes().items()
    }
    assert drawn(where) == real


def test_errors_that_are_also_pythons_say_so() -> None:
    for name, error in error_classes().items():
        for base in error.__bases__:
            if base.__module__ == "builtins" and base is not Exception:
                assert re.search(rf"\b{name} \({base.__name__}\)", errors.__doc__ or ""), name


# The reference


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Settings)])
def test_a_setting_is_documented(field: str) -> None:
    assert f"`{field}`" in WORDS


@pytest.mark.parametrize(
    "option",
    sorted(
        {field.name for field in dataclasses.fields(Options)} | {"name", "retry", "timeout", "keep", "connection"},
    ),
)
def test_an_option_of_a_task_is_documented(option: str) -> None:
    assert f"`{option}`" in WORDS


def test_variables_of_the_environment_are_documented() -> None:
    names = re.findall(r"environment\.get\(\"(\w+)\"\)", inspect.getsource(config))
    assert names
    assert [name for name in names if name not in WORDS] == []


def commands(of: click.Command = command_line, path: str = "dibs") -> Iterator[tuple[str, click.Command]]:
    if isinstance(of, click.Group):
        context = click.Context(of)
        for name in of.list_commands(context):
            command = of.get_command(context, name)
            assert command is not None
            yield from commands(command, f"{path} {name}")
    else:
        yield path, of


@pytest.mark.parametrize("path, command", [*commands()], ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_and_its_options_are_documented(path: str, command: click.Command) -> None:
    assert f"`{path}" in WORDS
    options = [name for option in command.params if isinstance(option, click.Option) for name in option.opts]
    assert [name for name in options if name.startswith("--") and name not in WORDS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []
