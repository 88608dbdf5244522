"""The types of a task's arguments are seen by type checkers, as they were declared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "typed" / "program.py"


def marked() -> list[int]:
    return [number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith("# wrong")]


@pytest.mark.slow
def test_mypy_sees_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--output", "json"]
    said = subprocess.run([*command, str(PROGRAM)], capture_output=True, text=True, cwd=tmp_path)
    errors = [json.loads(line) for line in said.stdout.splitlines()]
    assert sorted({error["line"] for error in errors if error["severity"] == "error"}) == marked(), said.stdout


@pytest.mark.slow
def test_pyright_sees_them(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "include": [str(PROGRAM)]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    said = subprocess.run([*command, "--project", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    found = json.loads(said.stdout)["generalDiagnostics"]
    assert sorted({each["range"]["start"]["line"] + 1 for each in found}) == marked(), said.stdout
