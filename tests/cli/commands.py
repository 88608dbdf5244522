"""Calling the command `dibs`, inside this process or as a user's shell would."""

import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dibs.cli.main import dibs

PROGRAM = Path(sys.executable).parent / "dibs"


@dataclass
class Shell:
    """Somebody in the directory of their project."""

    folder: Path
    environment: dict[str, str | None] = field(default_factory=lambda: {"DIBS_APP": None})

    def dibs(self, *arguments: str, input: str | None = None, **environment: str) -> Result:
        """Call a command. A sentence may go wrong, but nothing is ever shown as a stack trace."""
        result = CliRunner().invoke(dibs, arguments, input=input, env={**self.environment, **environment})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert "Traceback" not in result.output
        return result

    def write(self, source: str) -> str:
        """A module in the project; its name, which no other test uses."""
        name = f"shop_{secrets.token_hex(4)}"
        (self.folder / f"{name}.py").write_text(source)
        return name

    def real(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """The program itself."""
        return subprocess.run([PROGRAM, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Shell(tmp_path)
