"""Every schema on every engine that can have it."""

from collections.abc import Iterator

import pytest

from tests.adopted.schemas import ALL
from tests.adopted.tables import Adopted
from tests.engines import POSTGRES, SQLITE, Engines

ENGINES = [*SQLITE, "postgres18", *[name for name in POSTGRES if name == "postgres-url"]]
CASES = [
    pytest.param((name, schema, hurried), id=f"{name}-{schema.name}{', hurried' if hurried else ''}")
    for name in ENGINES
    for schema in ALL
    if schema.sqlite or not name.startswith("sqlite")
    for hurried in ([False] if name.startswith("sqlite") else [False, True])
]


@pytest.fixture(params=CASES)
def adopted(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Adopted]:
    """An empty table, adopted."""
    name, schema, hurried = request.param
    with engines.open(name) as engine:
        yield Adopted(engine, schema, hurried=hurried)
