"""Tests that cannot run here are omitted and named, or fail; never skipped in silence."""

import pytest

from tests import needs

pytest_plugins = ["pytester"]

SOURCE = """
import pytest

def test_plain(): pass

@pytest.mark.system("flux")
def test_flux(): pass

@pytest.mark.system("root", "flux")
def test_root_and_flux(): pass

@pytest.mark.long
def test_long(): pass
"""


@pytest.fixture(autouse=True)
def _no_flux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_REQUIRE_SYSTEM", raising=False)
    monkeypatch.setattr(
        needs,
        "NEEDS",
        {"root": (lambda: True, "this is not run as root"), "flux": (lambda: False, "flux is not installed")},
    )


def run(pytester: pytest.Pytester, *arguments: str, source: str = SOURCE) -> pytest.RunResult:
    pytester.makeini("[pytest]\nmarkers =\n    system\n    long")
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "tests.needs", "-p", "no:xdist", "-p", "no:asyncio", *arguments)


def test_what_lacks_something_is_omitted_and_named(pytester: pytest.Pytester) -> None:
    result = run(pytester)
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["omitted, because flux is not installed: 2 tests", "omitted, because they take long*: 1 test"]
    )


def test_where_everything_is_required_it_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_REQUIRE_SYSTEM", "1")
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=2, deselected=1)
    result.stdout.fnmatch_lines(["test_flux cannot run, because flux is not installed*"])


def test_long_tests_run_when_asked_for(pytester: pytest.Pytester) -> None:
    run(pytester, "--long").assert_outcomes(passed=2, deselected=2)


def test_long_tests_run_alone_when_chosen(pytester: pytest.Pytester) -> None:
    run(pytester, "-m", "long").assert_outcomes(passed=1, deselected=3)


def test_an_unknown_need_is_an_error(pytester: pytest.Pytester) -> None:
    result = run(pytester, source="import pytest\n\n@pytest.mark.system('fluxx')\ndef test_typo(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown need 'fluxx', known are root, flux*"])
