"""Benchmarks run for hours, and by hand: what they are made of is still there."""

import importlib

import pytest

from benchmarks.__main__ import QUESTIONS


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_can_be_asked(question: str) -> None:
    assert importlib.import_module(f"benchmarks.{question}").measure
