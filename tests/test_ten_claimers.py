"""The example of ten processes that claim from one queue, as people start it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps import on_file_first

EXAMPLE = Path(__file__).parents[1] / "examples" / "ten_claimers.py"


@pytest.mark.slow
@on_file_first
def test_no_job_runs_twice_and_none_is_lost(url: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLE, url], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the ledger says: 3,000 jobs ran, 0 ran twice, 0 were lost" in ended.stdout
