"""Fixtures for every test: real servers, and fresh databases on them."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from dibs.engines.engine import Engine
from tests.actors import Actors
from tests.engines import BOUNCED, POSTGRES, SQLITE, Engines, params
from tests.servers import Leash, Server, Servers
from tests.servers.fixtures import FreshDatabase, OwnServer
from tests.servers.users import unprivileged_folder

pytest_plugins = ["tests.needs", "tests.order", "tests.servers.plugin", "tests.apps"]


@pytest.fixture(scope="session", autouse=True)
def no_bytecode_of_programs() -> Iterator[None]:
    """A program of a test leaves none: where its text changes within a second, Python would take the old one for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        yield


@pytest.fixture
def postgres_url(postgres_servers: Servers) -> Iterator[FreshDatabase]:
    """Fresh databases, empty or copies of a template."""
    with ExitStack() as databases:

        def create(server: str, *, template: str | None = None) -> str:
            return databases.enter_context(postgres_servers[server].fresh_database(template=template))

        yield create


@pytest.fixture
def pgbouncer_url(postgres_servers: Servers, postgres_url: FreshDatabase) -> FreshDatabase:
    """Fresh databases behind PgBouncer in transaction mode: for tests marked `system("pgbouncer")`."""

    def create(server: str, *, template: str | None = None) -> str:
        return postgres_servers.bounced(server, postgres_url(server, template=template))

    return create


@pytest.fixture
def own_postgres(postgres_servers: Servers) -> Iterator[OwnServer]:
    """Servers for one test alone; they and their standbys end with it."""
    with Leash.hold() as leash:

        def create(version: str, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> Server:
            programs = postgres_servers.installation(version)
            return Server.create(programs, leash, name=version, durable=durable, settings=settings)

        yield create


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary folder like tmp_path, but one that the unprivileged user owns and can reach."""
    with unprivileged_folder() as folder:
        yield folder


@pytest.fixture
def engines(postgres_servers: Servers, tmp_path: Path) -> Engines:
    """Opens engines by name, for tests that need several or special ones."""
    return Engines(postgres_servers, tmp_path)


@pytest.fixture(params=params(*SQLITE, *POSTGRES, BOUNCED))
def engine(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Engine]:
    """Every engine in turn, on a fresh database."""
    with engines.open(request.param) as opened:
        yield opened


@pytest.fixture
def actors(engine: Engine) -> Actors:
    """People who use that engine: producers, workers, operators."""
    return Actors(engine)
