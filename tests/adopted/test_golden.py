"""What is compiled for a table is what people have read."""

import pytest

from tests.adopted.golden import FOLDER, texts


@pytest.mark.parametrize("name", texts())
def test_the_compiled_statements_are_as_they_were(name: str) -> None:
    assert texts()[name] == (FOLDER / name).read_text(), "if this is meant: python -m tests.adopted.golden"
