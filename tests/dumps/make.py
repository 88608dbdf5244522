"""Make the dumps of the newest schema: `python -m tests.dumps.make`, once before each release that has a migration.

An older dump is never made again: it is what people have.
"""

import json
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

from dibs.engines import migrate
from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from tests.actors import Actors
from tests.dumps.population import Population, as_json
from tests.servers import Leash, Servers

FOLDER = Path(__file__).parent
OLDEST = "postgres16"  # of those that come with the tests: its dump can be read by all later ones
# For psql alone, or for younger servers alone, or for the eye.
COMMENTS = ("-- Name: ", "-- Data for Name: ", "-- Dumped ", "-- PostgreSQL")
NOT_SQL = ("\\restrict", "\\unrestrict", "SET transaction_timeout", *COMMENTS)


def main() -> None:
    """Write the dumps and what they hold."""
    folder = FOLDER / f"{migrate.newest('sqlite'):04}"
    folder.mkdir(exist_ok=True)
    (folder / "sqlite.sql").write_text(sqlite_dump(folder / "sqlite.json"))
    (folder / "postgres.sql").write_text(postgres_dump(folder / "postgres.json"))


def fill(engine: Engine, jobs: Path) -> None:
    """A database with jobs in every state, and a file that says what they look like."""
    engine.migrate()
    ids = Population(engine).fill()
    shown = {name: as_json(Actors(engine).get(job_id)) for name, job_id in ids.items()}
    jobs.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n")
    engine.close()


def sqlite_dump(jobs: Path) -> str:
    """The text of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/dibs.db"
        fill(SqliteEngine(path), jobs)
        with closing(sqlite3.connect(path)) as connection:
            return "\n".join(connection.iterdump()) + "\n"


def postgres_dump(jobs: Path) -> str:
    """The text of a schema, as pg_dump writes it."""
    with Leash.hold() as leash, Servers(leash)[OLDEST].fresh_database() as url:
        fill(PostgresEngine(url), jobs)
        program = str(Servers(leash).installation(OLDEST).programs / "pg_dump")
        command = [program, "--schema=dibs", "--no-owner", "--no-privileges", "--inserts", f"--dbname={url}"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line not in ("", "--") and not line.startswith(NOT_SQL)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
