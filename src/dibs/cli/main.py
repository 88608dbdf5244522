"""The command `dibs`. A user's mistake is answered with a sentence, never with a stack trace."""

from __future__ import annotations

import sys
from typing import Any

import click

from dibs.cli.db import db
from dibs.cli.demo import demo
from dibs.cli.drain import drain
from dibs.cli.enqueue import enqueue
from dibs.cli.jobs import jobs
from dibs.cli.queues import queues, workers
from dibs.cli.worker import worker
from dibs.errors import DibsError


class Commands(click.Group):
    """Shows our own errors as click shows its own."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except DibsError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dibs")
def dibs() -> None:
    """Background jobs on the database you already have.

    The first argument of a command is your app as module:attribute (like shop.jobs:app), or a database URL; else the
    environment's DIBS_APP.
    """


for command in (db, demo, drain, enqueue, jobs, queues, worker, workers):
    dibs.add_command(command)


def main() -> None:
    """The entry point."""
    sys.exit(dibs())
