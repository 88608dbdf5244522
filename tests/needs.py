"""Which tests run here: a pytest plugin for the markers `system` and `long`.

A test says what it needs of the system, as in `@pytest.mark.system("pgbouncer", "root")`. Where that is missing the
test is omitted, and the summary says so once for each reason; with DIBS_REQUIRE_SYSTEM=1 it fails instead. Tests marked
`long` run with `--long`, or by themselves with `-m long`.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from shutil import which
from typing import Any

import pytest

from tests.faketime import find_faketime
from tests.servers.pgbouncer import find_pgbouncer
from tests.servers.postgres import find_system_programs

# What a test may need: whether it is there, and what to say when it is not.
NEEDS: Mapping[str, tuple[Callable[[], bool], str]] = {
    "chromium": (lambda: which("chromium") is not None, "chromium is not installed"),
    "faketime": (lambda: find_faketime() is not None, "libfaketime is not installed"),
    "node": (lambda: which("node") is not None and which("npm") is not None, "node and npm are not installed"),
    "pgbouncer": (lambda: find_pgbouncer() is not None, "pgbouncer is not installed"),
    "postgresql": (lambda: find_system_programs() is not None, "the system has no PostgreSQL of its own"),
    "root": (lambda: os.geteuid() == 0, "this is not run as root"),
}
LONG = "they take long (--long runs them too)"

omitted_key = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long."""
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.stash[omitted_key] = Counter()


@pytest.hookimpl(trylast=True)  # after -k and -m have made their choice
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what cannot or should not run here, and count it by reason."""
    reasons = {item: reason_to_omit(item) for item in items}
    config.stash[omitted_key].update(reason for reason in reasons.values() if reason)
    if omitted := [item for item in items if reasons[item]]:
        config.hook.pytest_deselected(items=omitted)
        items[:] = [item for item in items if not reasons[item]]


@pytest.hookimpl(tryfirst=True)  # before a fixture fails for the same reason, less clearly
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that was kept although it lacks something."""
    if lacks := missing(item):
        pytest.fail(f"{item.name} cannot run, because {lacks} (and DIBS_REQUIRE_SYSTEM=1 says not to omit it)", False)


def reason_to_omit(item: pytest.Item) -> str | None:
    """Why a test is left out, if it is."""
    if item.get_closest_marker("long") and not wants_long(item.config):
        return LONG
    return None if os.environ.get("DIBS_REQUIRE_SYSTEM") == "1" else missing(item)


def wants_long(config: pytest.Config) -> bool:
    """Whether the command line asks for the long tests."""
    return bool(config.getoption("--long")) or "long" in config.getoption("-m")


def missing(item: pytest.Item) -> str | None:
    """What a test needs and does not have, as the end of a sentence."""
    for marker in item.iter_markers("system"):
        for need in marker.args:
            if need not in NEEDS:
                raise pytest.UsageError(f"{item.nodeid}: unknown need {need!r}, known are {', '.join(NEEDS)}")
            is_there, complaint = NEEDS[need]
            if not is_there():
                return complaint
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one, if one did, what was omitted."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        omitted = session.config.stash[omitted_key]
        output["omitted"] = dict(omitted)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a test process omitted: they all collect the same tests, so any one will do."""
    output = getattr(node, "workeroutput", None)
    if output is not None:
        node.config.stash[omitted_key] = Counter(output["omitted"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was omitted."""
    for reason, count in sorted(config.stash[omitted_key].items()):
        terminalreporter.write_line(f"omitted, because {reason}: {count} {'test' if count == 1 else 'tests'}")
