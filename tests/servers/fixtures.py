"""What the fixtures over the servers give to a test, as types."""

from collections.abc import Mapping
from typing import Protocol

from tests.servers.postgres import Server


class FreshDatabase(Protocol):
    """Creates a database on the named server, to be dropped after the test, and returns its URL."""

    def __call__(self, server: str, *, template: str | None = None) -> str: ...


class OwnServer(Protocol):
    """Starts a server for one test alone, which may stop, kill and promote it; the version is a server's name."""

    def __call__(self, version: str, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> Server: ...
