"""An app with a few tasks, and a server of it."""

from collections.abc import Iterator

import pytest

from dibs import Dibs
from tests.server.serving import Serving, serving


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    """An app on a fresh database, of either kind."""
    app = Dibs(url)

    @app.task(name="double", queue="numbers", tags=["math"])
    def double(n: int, password: str = "") -> int:
        return 2 * n

    @app.task(name="fail", max_attempts=1)
    def fail(why: str) -> None:
        raise ValueError(why)

    app.commands()
    yield app
    app.close()


@pytest.fixture
def server(app: Dibs) -> Iterator[Serving]:
    """Open to this machine."""
    with serving(app) as server:
        yield server
