"""A shell for every test of the command line."""

from tests.cli.commands import shell

__all__ = ["shell"]
