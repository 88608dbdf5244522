"""Marks for the few behaviours that only one kind of engine has: a server with many writers, or a file with one."""

import pytest

from tests.engines import BOUNCED, POSTGRES, SQLITE, params

on_servers = pytest.mark.parametrize("engine", params(*POSTGRES, BOUNCED), indirect=True)
on_files = pytest.mark.parametrize("engine", params(*SQLITE), indirect=True)
