"""The example of a paid provider, as people start it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.ports import free_port

EXAMPLE = Path(__file__).parents[1] / "examples" / "summaries.py"


@pytest.mark.slow
def test_each_item_is_paid_for_once(url: str, tmp_path: Path) -> None:
    environment = os.environ | {"DIBS_URL": url, "ITEMS": "120", "PROVIDER": f"http://127.0.0.1:{free_port()}"}
    ended = subprocess.run(
        [sys.executable, EXAMPLE], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert "120 of 120 items are done, 0 failed" in ended.stdout
    assert "each was paid for once" in ended.stdout
    assert "a duplicate was prevented" in ended.stderr  # the hundredth answer was lost
    books, till = re.findall(r"([0-9,]+) tokens", ended.stdout)
    assert books == till
