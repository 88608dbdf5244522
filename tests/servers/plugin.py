"""A pytest plugin: one set of servers for a run, however many processes it has."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.leash import Leash
from tests.servers.shared import Servers

servers_key = pytest.StashKey[Servers]()


@pytest.hookimpl(tryfirst=True)  # before the folder for temporary files is settled
def pytest_configure(config: pytest.Config) -> None:
    """Hold the leash in the process that was started first; the processes it starts hang on to it."""
    folder: str | None = getattr(config, "workerinput", {}).get("servers")
    if folder is not None:
        leash = Leash(Path(folder))
        leash.end_with_it()
        servers = config.stash[servers_key] = Servers(leash)
        config.add_cleanup(servers.close)
        return
    run = ExitStack()
    leash = run.enter_context(Leash.hold())
    servers = config.stash[servers_key] = Servers(leash)
    run.callback(servers.close)
    run.callback(servers.drop_leftovers)
    config.add_cleanup(run.close)
    if config.option.basetemp is None and leash.memory is not None:
        config.option.basetemp = str(leash.memory / "tmp")  # a file of SQLite is made in half the time there


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist where the servers are."""
    node.workerinput["servers"] = str(node.config.stash[servers_key].leash.folder)


@pytest.fixture(scope="session")
def postgres_servers(pytestconfig: pytest.Config) -> Servers:
    """Every PostgreSQL server by name, started when first asked for."""
    return pytestconfig.stash[servers_key]
