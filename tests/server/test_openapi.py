"""The API is as its own document says: whatever schemathesis makes up of that is answered as it says."""

import subprocess
import sys
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.server.asgi import ALL
from tests.apps import on_postgres
from tests.server.serving import serving
from tests.server.test_access import token

# All but two. Not every limit can be said in a schema (a time between 1970 and 9999, a number under 64 bits), so what
# fits the schema may be refused; and GET of a path that only POST has asks for a job of that name.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "use_after_free",
    "ensure_resource_availability",
    "ignored_auth",
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@on_postgres
def test_it_is_as_it_says(app: Dibs, tmp_path: Path) -> None:
    mine = token(app, "read", "enqueue", "work", "operate")
    with serving(app, unknown_tasks=True) as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.address}/openapi.json"),
                *("-H", f"Authorization: Bearer {mine}", "--exclude-path-regex", "events$"),
                *("--max-examples", "15", "--checks", ",".join(CHECKS), "--seed", "1"),
                *("--request-timeout", "60"),  # a claim waits 9 s if it is told to, on a machine that has time
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, "\n".join(line[:500] for line in done.stdout.splitlines())[-6000:]


def test_only_posts_change_anything() -> None:
    assert {route.method for route in ALL} == {"GET", "POST"}
