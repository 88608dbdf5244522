"""A supervisor that is told to stop at the worst moments."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from dibs.job import WorkerId
from dibs.worker.supervisor import FIRST_PAUSE, LIVED_WELL, LONGEST_PAUSE, Child, Supervisor

RESCUED = 10.0  # seconds
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(autouse=True)
def rescue() -> Iterator[None]:
    """A supervisor that hangs is told again, so that the test fails instead."""
    timer = threading.Timer(RESCUED, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    yield
    timer.cancel()


class Told(Supervisor):
    """Gets SIGTERM when it has started a child, before it can write that down."""

    times = 0

    def _start(self) -> Child:
        child = super()._start()
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    def _note(self, number: int, frame: object) -> None:
        self.times += number == signal.SIGTERM
        super()._note(number, frame)


def nobody(rows: Sequence[WorkerId]) -> int:
    return 0


def test_told_while_a_child_is_being_started() -> None:
    supervisor = Told(SLEEPER, 1, nobody)
    assert supervisor.run() == 0
    assert supervisor.times == 1


def test_told_while_several_are_being_started() -> None:
    supervisor = Told(SLEEPER, 3, nobody)
    assert supervisor.run() == 0
    assert supervisor.times == 3, "once for each of them"


class ToldAtAGrave(Supervisor):
    """Gets SIGTERM when it is about to replace a child that died."""

    buried = 0

    def clock_at_a_grave(self) -> float:
        if self.ready and not self.buried:
            self.buried = 1
            os.kill(os.getpid(), signal.SIGTERM)
        return 0.0


def test_told_while_a_dead_child_is_being_replaced() -> None:
    dies = "import os; os.write(int(os.environ['DIBS_SUPERVISOR_PIPES'].split(',')[1]), b'7\\n'); os._exit(3)"
    supervisor = ToldAtAGrave([sys.executable, "-c", dies], 1, nobody)
    supervisor.clock = supervisor.clock_at_a_grave
    assert supervisor.run() == 0
    assert supervisor.buried == 1


def test_who_dies_again_and_again_is_replaced_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once after the first death, and after one that has lived well."""
    supervisor, now = Supervisor(SLEEPER, 1, nobody), [1000.0]
    supervisor.clock, supervisor.ready = lambda: now[0], True

    def pause(lived: float) -> float:
        supervisor.starts = []
        child = supervisor._start()
        child.process.kill()
        child.process.wait()
        child.close()
        now[0] += lived
        supervisor._buried(child, -signal.SIGKILL)
        return round(supervisor.starts[0] - now[0], 6)

    doubled = [FIRST_PAUSE * 2**n for n in range(1, 20)]
    expected = [0.0, *[min(each, LONGEST_PAUSE) for each in doubled]]
    assert [pause(lived=0.1) for _ in expected] == expected
    assert expected[-1] == LONGEST_PAUSE
    assert pause(lived=LIVED_WELL + 1) == 0.0
    assert pause(lived=0.1) == expected[1]


HURRIES = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
life, reports = map(int, os.environ["DIBS_SUPERVISOR_PIPES"].split(","))
os.write(reports, b"7\\n")
os._exit(0 if os.read(life, 1) else 3)
"""


class ToldTwiceAtOnce(Supervisor):
    """Gets SIGTERM twice before it can pass on the first."""

    times = 0

    def _pause(self) -> float | None:
        while self.ready and self.times < 2:
            self.times += 1
            os.kill(os.getpid(), signal.SIGTERM)
        return super()._pause()


def test_told_twice_at_once() -> None:
    supervisor = ToldTwiceAtOnce([sys.executable, "-c", HURRIES], 1, nobody)
    began = time.monotonic()
    assert supervisor.run() == 0
    assert time.monotonic() - began < RESCUED
