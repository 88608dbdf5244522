"""Waiting for a worker's beats, from wherever its database can be seen."""

import time

from dibs import Dibs
from dibs.operations import workers

PATIENCE = 30.0


def await_beats(app: Dibs, number: int = 3) -> None:
    """Until the only worker that there is has beaten so often."""
    seen, deadline = set(), time.monotonic() + PATIENCE
    while len(seen) <= number:
        assert time.monotonic() < deadline, "its heart has stopped"
        seen.add(max(row.beat_at for row in app.engine.run(workers.list_workers()) if row.beat_at))
        time.sleep(0.005)
