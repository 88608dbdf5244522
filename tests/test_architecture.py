"""What holds the parts together: the same statements and migrations on both engines, SQL in .sql files, small modules.

That imports point down is checked by import-linter, in `make check`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
from dibs.engines import migrate
from dibs.engines.dialect import Dialect
from dibs.engines.postgres.dialect import PostgresDialect
from dibs.engines.sqlite.dialect import SqliteDialect

SOURCE = Path(dibs.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
OPERATIONS = sorted((SOURCE / "operations").glob("*.py"))
LONGEST = 400

PUBLIC = [
    "Batch",
    "BatchProgress",
    "Call",
    "CurrentJob",
    "Dibs",
    "DibsError",
    "Done",
    "DrainReport",
    "Job",
    "JobState",
    "Permanent",
    "Rejected",
    "RetryAfter",
    "Task",
    "Waiting",
    "current_job",
    "exponential",
]
# Functions that may swallow any exception, and why. (To clean up and raise it again needs no permission.)
BROAD = {
    "server/adder.py: _add": "whatever it is, everyone who waits for the same transaction is told",
    "server/hub.py: _for_ever": "whatever it is, those who watch depend on its going on",
    "worker/heart.py: _beat": "whatever it is, the next beat tries again: without a heart all is lost",
    "worker/run.py: run": "user code may raise anything",
    "worker/embedded.py: _run": "whatever ends the thread is raised by whoever started it",
    "worker/run.py: _reconciled": "likewise; a question that failed is no answer",
    "retry.py: pause": "a retry policy is user code too",
    "worker/questions.py: _ask": "of poll_many, which is user code: each of those who asked is told",
    "worker/provider.py: _ask": "a submit that did not return: a person is to decide",
    "worker/provider.py: _answer": "a callback that cannot be read does not keep one from asking",
    "worker/provider.py: _poll": "what was accepted is asked after until there is no time left",
    "worker/provider.py: _cancel": "a provider that cannot be told does not keep a job",
    "worker/threads.py: _answer": "the same in a thread",
    "worker/child.py: _outcome": "and importing the module that has it",
    "worker/run.py: _described": "so is the __str__ of an exception",
}
SQL = re.compile(
    r"\b(select\s|insert\s+into|update\s+\S+\s+set|delete\s+from|from\s+dibs\b|where\s|returning\b|begin\b|commit\b|rollback\b)",
    re.IGNORECASE,
)
ENGINE_NAMES = re.compile(r"sqlite|postgres|psycopg", re.IGNORECASE)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def texts(module: ast.Module) -> Iterator[str]:
    """Every text in the code that is no docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parents = [node for node in ast.walk(module) if isinstance(node, documented)]
    # A text that stands alone after an assignment is its documentation.
    alone = {id(item.value) for node in parents for item in node.body if isinstance(item, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def statements_of_operations() -> set[str]:
    """The names that operations yield."""
    return {
        str(node.args[0].value)
        for path in OPERATIONS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Statement"
        and isinstance(node.args[0], ast.Constant)
    }


def statements_of_engines() -> set[str]:
    """The names that the engines themselves look up, as in `dialect.steps["version"]`."""
    return {
        str(node.slice.value)
        for path in (SOURCE / "engines").rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "steps"
        and isinstance(node.slice, ast.Constant)
    }


def swallowers() -> Iterator[str]:
    """Functions that catch everything and do not raise it again."""
    for path in MODULES:
        for function in ast.walk(tree(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.ExceptHandler) and catches_all(node) and not passes_on(node):
                        yield f"{name(path)}: {function.name}"


def catches_all(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(each is None or ast.unparse(each) in ("Exception", "BaseException") for each in caught)


def passes_on(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


DIALECTS: dict[str, Dialect] = {"sqlite": SqliteDialect(), "postgres": PostgresDialect("dibs")}


def test_both_engines_define_the_same_statements() -> None:
    own_to_sqlite = {"temporary"}  # the lists that travel from one step to the next
    own_to_postgres = {"new_ids", "copy", "copy_later", "new_parts", "copy_parts", "copy_parts_later"}
    assert set(DIALECTS["sqlite"].steps) - own_to_sqlite == set(DIALECTS["postgres"].steps) - own_to_postgres


@pytest.mark.parametrize("engine", DIALECTS)
def test_every_statement_is_there_and_used(engine: str) -> None:
    used = statements_of_operations() | statements_of_engines()
    assert statements_of_operations() <= set(DIALECTS[engine].steps)
    assert set(DIALECTS[engine].steps) <= used


def test_the_names_of_statements_are_written_out() -> None:
    """Else the tests above would not see them."""
    calls = [call for path in OPERATIONS for call in re.findall(r"\bStatement\(\s*(.)", path.read_text())]
    assert set(calls) == {'"'}


def test_migrations_have_the_same_numbers_and_names() -> None:
    sqlite, postgres = ([(each.number, each.name) for each in migrate.migrations(engine)] for engine in DIALECTS)
    assert sqlite == postgres
    assert [number for number, _ in sqlite] == list(range(1, len(sqlite) + 1))


def test_the_public_names_are_pinned() -> None:
    assert dibs.__all__ == PUBLIC
    assert all(getattr(dibs, public).__doc__ for public in PUBLIC)


@pytest.mark.parametrize("path", OPERATIONS, ids=name)
def test_operations_hold_no_sql_no_engine_and_no_try(path: Path) -> None:
    assert [text for text in texts(tree(path)) if SQL.search(text)] == []
    assert [text for text in texts(tree(path)) if ENGINE_NAMES.search(text)] == []
    if path.stem != "operation":  # where they are carried
        assert not any(isinstance(node, ast.Try) for node in ast.walk(tree(path)))


def test_only_those_listed_swallow_any_exception() -> None:
    assert set(swallowers()) == set(BROAD)


def test_the_environment_is_read_in_one_place() -> None:
    assert [name(path) for path in MODULES if re.search(r"\b(environ|getenv)\b", path.read_text())] == ["config.py"]


def test_no_module_is_too_long() -> None:
    assert {name(path): lines for path in MODULES if (lines := len(path.read_text().splitlines())) > LONGEST} == {}


def test_every_module_says_why_it_exists() -> None:
    assert [name(path) for path in MODULES if not ast.get_docstring(tree(path))] == []
