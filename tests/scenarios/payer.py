"""A program that hands one job to a provider, and kills itself at a named point on the way.

python -m tests.scenarios.payer URL MODE POINT FOLDER
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dibs import Dibs, Done, Task
from dibs.worker.provider import Providers
from tests.scenarios.hooked import deadly

# How a task finds out, after a submit that did not return; the last: the provider does not honour the key as was said.
MODES = ("reconcile", "hold", "resubmit", "resubmit, key not honoured")
# Where: the method of Providers, and whether before or after it; None: the provider itself. In the order of a run.
POINTS: dict[str, tuple[str | None, str]] = {
    "claimed, the submission not noted": ("_submit", "before"),
    "the submission noted, the provider not asked": ("_ask", "before"),
    "accepted by the provider, and not answered": (None, ""),
    "answered, and not stored": ("_accepted", "before"),
    "stored: PROCESSING": ("_accepted", "after"),
    "the result known, and not stored": ("_done", "before"),
    "the result stored: SUCCESSFUL": ("_done", "after"),
}


def accepted(folder: Path) -> list[str]:
    """The keys that the provider has accepted, by its own ledger."""
    ledger = folder / "accepted"
    return ledger.read_text().split() if ledger.exists() else []


def app_for(url: str, mode: str, folder: Path, point: str = "") -> tuple[Dibs, Task[Any, Any]]:
    """The app and its task; the provider writes down what it accepts."""
    app = Dibs(url, lease=4.0, beat=0.1)

    class Plain:
        async def submit(self, key: str) -> str:
            keys = accepted(folder)
            if key not in keys or mode != "resubmit":
                with (folder / "accepted").open("a") as file:
                    file.write(f"{key}\n")
            if point == "accepted by the provider, and not answered":
                os.kill(os.getpid(), signal.SIGKILL)
            return f"{key}-{len(accepted(folder))}"

        async def poll(self, task_id: str) -> Done:
            return Done("done", usage=1)

    class Careful(Plain):
        async def reconcile(self, key: str) -> str | None:
            return f"{key}-1" if key in accepted(folder) else None

    choice = None if mode == "reconcile" else mode.partition(",")[0]
    declare = app.provider_task(name="pay", poll_every=0.01, retry=0.01, after_crash=choice)
    return app, declare(Careful if mode == "reconcile" else Plain)


def arm(point: str) -> None:
    """From now on the program dies there."""
    name, when = POINTS[point]
    if name is not None:
        method: Callable[..., Any] = getattr(Providers, name)
        setattr(Providers, name, deadly(method, when))


if __name__ == "__main__":
    _, url, mode, point, folder = sys.argv
    arm(point)
    app_for(url, mode, Path(folder), point)[0].drain()
