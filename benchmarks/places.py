"""Where benchmarks run: servers that wait for their disk, fresh databases and files; none of it is left behind."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.servers import Leash, Server, installations

NEWEST = "postgres18"
SETTINGS = {"timezone": "UTC"}


class Bench:
    """What a question is given."""

    def __init__(self, leash: Leash, *, quick: bool, rounds: int, server: str = NEWEST, only: str = "") -> None:
        self.leash, self.quick, self.rounds, self.default, self.only = leash, quick, rounds, server, only
        self.began = time.monotonic()
        self.servers: dict[str, Server] = {}
        self.files = leash.new_folder("sqlite", on_disk=True)

    def size(self, full: int, quick: int) -> int:
        """How many, in this mode."""
        return quick if self.quick else full

    def wants(self, case: str) -> bool:
        """Whether this case is asked for."""
        return self.only in case

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"[{time.monotonic() - self.began:6.0f} s] {text}", file=sys.stderr, flush=True)

    def server(self, name: str | None = None) -> Server:
        """A server by the name of its version, started when first asked for."""
        name = name or self.default
        if name not in self.servers:
            self.say(f"starting {name}")
            self.servers[name] = Server.create(
                installations()[name], self.leash, name=name, durable=True, settings=SETTINGS
            )
        return self.servers[name]

    @contextmanager
    def database(self, server: str | None = None) -> Iterator[str]:
        """The URL of a fresh, empty database."""
        with self.server(server).fresh_database() as url:
            yield url

    @contextmanager
    def file(self, name: str) -> Iterator[str]:
        """The path of a SQLite file that does not exist yet."""
        path = self.files / f"{name}.db"
        try:
            yield str(path)
        finally:
            for end in ("", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)


def versions() -> list[str]:
    """The servers that there is a promise about: the system's, where it has one, and the newest."""
    return [name for name in installations() if name in ("postgres-system", NEWEST)]


def version_of(url: str) -> str:
    """The server's own word."""
    with psycopg.connect(url) as connection:
        return f"PostgreSQL {connection.info.parameter_status('server_version')}"


def checkpoint(url: str) -> None:
    """Write out what was loaded, so that no contestant pays for it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("checkpoint")


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """Another session that began before everything else and does not end."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1")
        yield
