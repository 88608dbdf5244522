"""PgBouncer in transaction mode, in front of a server."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.servers.databases import Databases, at
from tests.servers.leash import Leash
from tests.servers.ports import free_port
from tests.servers.postgres import PATIENCE_SECONDS, ServerFailed

# Any user name is let in and becomes the user of the server's URL, so no list of users is needed.
CONFIGURATION = """\
[databases]
* = {server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 10
max_client_conn = 500
server_round_robin = 1
"""


def find_pgbouncer() -> Path | None:
    """Find the program, also where Debian keeps it but a user's PATH does not look."""
    found = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    return Path(found) if found else None


class PgBouncer:
    """A PgBouncer that passes everything on to one server, under the same database names."""

    def __init__(self, server: Databases, leash: Leash, *, name: str) -> None:
        program = find_pgbouncer()
        if program is None:
            raise RuntimeError("pgbouncer is not installed")
        self.name = name
        self.port = free_port()
        self._url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        folder = leash.new_folder(name)
        self.log = folder / "log"
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(self._configuration(server))
        self._guard: subprocess.Popen[bytes] = leash.start([program, configuration], log=self.log)
        self._wait_until_it_answers()

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database through PgBouncer."""
        return at(self._url, database=database)

    def stop(self) -> None:
        """Stop at once, and wait until it is gone."""
        self._guard.send_signal(signal.SIGTERM)
        self._guard.wait(PATIENCE_SECONDS)

    def _configuration(self, server: Databases) -> str:
        behind = conninfo_to_dict(server.url())
        reached = {name: behind[name] for name in ("host", "port", "user", "password") if name in behind}
        return CONFIGURATION.format(
            server=" ".join(f"{name}='{value}'" for name, value in reached.items()), port=self.port
        )

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return psycopg.connect(self.url()).close()
            except psycopg.OperationalError as error:
                if self._guard.poll() is not None or time.monotonic() > deadline:
                    raise ServerFailed(self.name, self.log) from error
                time.sleep(0.02)
