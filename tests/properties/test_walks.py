"""Walks over every engine.

DIBS_WALKS=20000 makes so many in all, by a new chance each time, and takes the time to make a failure short. Without
it they are the same ones in every run, and the first failure is told as it was found.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engines import BOUNCED, POSTGRES, Engines, params
from tests.properties.lab import Lab
from tests.properties.walk import Walk

ASKED = os.environ.get("DIBS_WALKS")
WALKS = int(ASKED or 560)
STEPS = 40
SECONDS_A_WALK = 2.0  # generous; for the timeout
SHRINKING = 330.0 if ASKED else 60.0  # seconds that a failure may take to become short
# Two engines get most of the walks, in parts that can run side by side; the others see that they are no different.
PARTS = [(name, part) for name in ("sqlite", "postgres18") for part in range(5)]
OTHERS = ("sqlite-classic", *[name for name in POSTGRES if name != "postgres18"], BOUNCED)
WALKS_A_PART = max(WALKS * 9 // 100, 1)
WALKS_OF_OTHERS = max(WALKS // 40, 1)


def walk(engines: Engines, name: str, walks: int, part: int) -> None:
    options: dict[str, Any] = {"synchronous": "off"} if name.startswith("sqlite") else {}
    with engines.open(name, **options) as engine, Lab.open(engine) as lab:

        def machine() -> Walk:
            return Walk(lab)

        chosen = settings(
            max_examples=walks,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not ASKED,
            phases=(Phase.generate, Phase.shrink) if ASKED else (Phase.generate,),
            print_blob=bool(ASKED),
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],  # its steps are transactions on a real database
        )
        # Each part takes other walks.
        run_state_machine_as_test(machine if ASKED else seed(part)(machine), settings=chosen)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING + SECONDS_A_WALK * WALKS_A_PART)
@pytest.mark.parametrize("name, part", PARTS)
def test_the_queue_does_what_the_model_says(engines: Engines, name: str, part: int) -> None:
    walk(engines, name, WALKS_A_PART, part)


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING + SECONDS_A_WALK * WALKS_OF_OTHERS)
@pytest.mark.parametrize("name", params(*OTHERS))
def test_every_engine_does_what_the_model_says(engines: Engines, name: str) -> None:
    walk(engines, name, WALKS_OF_OTHERS, len(PARTS))
