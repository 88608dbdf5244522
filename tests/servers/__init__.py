"""Real servers for the tests: PostgreSQL in several versions, PgBouncer, small disks, unprivileged users.

    with Leash.hold() as leash:                  # pytest does this once per run; benchmarks do it themselves
        servers = Servers(leash)                 # the servers of the run, each started when first asked for
        with servers["postgres18"].fresh_database() as url:
            ...

A server that cannot start raises with the end of its log: no database is ever skipped.
"""

from tests.servers.databases import Databases
from tests.servers.leash import Leash
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Installation, Server, installations
from tests.servers.shared import POSTGRES, Servers

__all__ = ["POSTGRES", "Databases", "Installation", "Leash", "PgBouncer", "Server", "Servers", "installations"]
