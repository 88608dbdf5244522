"""The servers that all tests of a run share, whichever of its processes they run in."""

import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import pytest

from tests.servers.databases import Kept, at
from tests.servers.leash import Leash
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Installation, Server, installations

OTHER_SERVER = os.environ.get("DIBS_TEST_URL")

# To parametrize a test by: every server there is, and the system's by a name that is omitted where it has none.
POSTGRES = [
    "postgres16",
    "postgres18",
    pytest.param("postgres-system", marks=pytest.mark.system("postgresql")),
    *(["postgres-url"] if OTHER_SERVER else []),
]


class Servers(Mapping[str, Kept]):
    """Every server by its name; the first test in any process to ask for one starts it, the run ends it."""

    def __init__(self, leash: Leash) -> None:
        self.leash = leash
        self._known: dict[str, Kept] = {}

    def __getitem__(self, name: str) -> Kept:
        if name not in self._known:
            self._known[name] = Kept(self._url(name), self.leash)
        return self._known[name]

    def _url(self, name: str) -> str:
        if name == "postgres-url" and OTHER_SERVER:
            return OTHER_SERVER
        installation = self.installation(name)
        return self.leash.once(name, lambda: Server.create(installation, self.leash, name=name).url())

    def __iter__(self) -> Iterator[str]:
        yield from installations()
        if OTHER_SERVER:
            yield "postgres-url"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def installation(self, name: str) -> Installation:
        """Return the programs of the named server, for a test that runs one of its own."""
        return installations()[name].for_unprivileged(self.leash)

    def bounced(self, name: str, url: str) -> str:
        """Return the address of a database on the named server through the PgBouncer in front of that server."""
        bouncer = f"pgbouncer-{name}"
        through = self.leash.once(bouncer, lambda: PgBouncer(self[name], self.leash, name=bouncer).url())
        return at(through, database=urlsplit(url).path.removeprefix("/"))

    def close(self) -> None:
        """Let go of them, in this process."""
        for server in self._known.values():
            server.close()

    def drop_leftovers(self) -> None:
        """Leave a server that is not ours as it was."""
        if OTHER_SERVER:
            self["postgres-url"].drop_leftovers()
