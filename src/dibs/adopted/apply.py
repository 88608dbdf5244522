"""What was planned is done. An index that is built beside the table's own work waits until transactions have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from dibs.adopted.plan import Improvement
from dibs.engines.dialect import Step
from dibs.engines.engine import Engine
from dibs.errors import DatabaseError
from dibs.operations import adopted
from dibs.operations.operation import Compiled, Conversation, operation

LONG = 86_400.0  # seconds that an index may take to be built
LOOK = 1.0  # seconds between looks at who is waited for
UNLIMITED = Step("reset lock_timeout")  # what is ours; who has a limit of their own keeps it
WAITED_FOR = Step(
    """select b.pid, b.application_name, coalesce(to_char(b.xact_start, '", open since "HH24:MI:SS'), '')
from pg_stat_activity a join pg_stat_activity b on b.pid = any (pg_blocking_pids(a.pid))
where a.datname = current_database() and a.state = 'active' and a.query <> ''
  and starts_with(%(sql)s::text, a.query)""",
    uses=frozenset({"sql"}),
)


def apply(improvement: Improvement, engine: Engine, tell: Callable[[str], None] = lambda _: None) -> None:
    """Do it. Whoever it waits for is told."""
    change = Step(improvement.sql if engine.name == "sqlite" else improvement.sql.replace("%", "%%"))
    if not improvement.waits:
        engine.run_once(adopted.change([change]), within=LONG)
        return
    try:
        with _looking(improvement.sql, engine, tell):
            engine.run_once(adopted.change([UNLIMITED, change]), within=LONG)
    finally:
        engine.close()  # what comes next has its limit again


@contextmanager
def _looking(sql: str, engine: Engine, tell: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile, on a thread of its own."""
    over, told = Event(), set[str]()

    def look() -> None:
        while not over.wait(LOOK):
            with suppress(DatabaseError):
                for line in engine.run_once(_waited_for(sql)):
                    if line not in told:
                        told.add(line)
                        tell(line)

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@operation(reads=True)
def _waited_for(sql: str) -> Conversation[list[str]]:
    """The transactions that keep this statement waiting, a line each."""
    rows = yield Compiled("waited_for", [WAITED_FOR], sql=sql)
    return [
        f"it waits for the transaction of process {pid} ({adopted.printable(name)}){since}" for pid, name, since in rows
    ]
