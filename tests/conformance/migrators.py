"""Ten processes that migrate one database at the same moment; run as a program, prints what each of them did.

python -m tests.conformance.migrators <kind> <where>
"""

import json
import os
import subprocess
import sys
import traceback

from dibs.engines.engine import Engine
from dibs.engines.postgres.engine import PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from tests.engines import classic

COUNT = 10


def migrate_at_once(engine: Engine) -> list[list[str]]:
    """What each of ten processes says that it migrated."""
    match engine:
        case PostgresEngine():
            arguments = ["postgres", engine.server.url]
        case SqliteEngine():
            arguments = [engine.place.module.__name__, engine.place.path]
    program = [sys.executable, "-m", "tests.conformance.migrators", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(kind: str, where: str) -> None:
    """Start the ten, let them go together, and wait for them."""
    ready, gun = os.pipe()
    children = [child for _ in range(COUNT) if (child := start(kind, where, ready, gun))]
    os.close(gun)
    failures = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(failures))


def start(kind: str, where: str, ready: int, gun: int) -> int:
    """Fork one that waits for the gun."""
    child = os.fork()
    if child:
        return child
    try:
        os.close(gun)
        os.read(ready, 1)  # ends when the parent lets go
        engine = open_engine(kind, where)
        os.write(1, (json.dumps(engine.migrate()) + "\n").encode())
        engine.close()
        os._exit(0)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)


def open_engine(kind: str, where: str) -> Engine:
    """The engine of a kind, on a database that is there."""
    if kind == "postgres":
        return PostgresEngine(where)
    return SqliteEngine(where, module=classic()) if kind == "classic" else SqliteEngine(where)


if __name__ == "__main__":
    main(*sys.argv[1:])
