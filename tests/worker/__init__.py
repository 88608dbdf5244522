"""Tests of the worker: its heart, its lanes, its drain."""
