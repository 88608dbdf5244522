"""The command `dibs`. A user's mistake is answered with a sentence, never with a stack trace."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

# Loaded when called: `dibs --help`, and completion in a shell, need no database and no worker.
COMMANDS = {
    "adopt": "Tables of yours that are queues: plan what they need, apply it, check them.",
    "batches": "Batches: list them, watch one, cancel it, retry what failed in it, close it.",
    "completion": "Print what makes Tab complete in your shell.",
    "db": "The schema in your database: bring it up to date, look at it, print it.",
    "demo": "A tour: jobs run, one fails and is retried, and a worker is killed with SIGKILL while it runs another.",
    "dev": "A worker and a server that start anew whenever a Python file changes.",
    "drain": "Run what is due, and end: for cron and serverless functions.",
    "enqueue": "Add a job.",
    "jobs": "Jobs: list them, look at one, cancel or retry them.",
    "queues": "Queues: what waits in them; pause and resume them.",
    "serve": "Add and watch jobs over HTTP and WebSockets.",
    "tokens": "Tokens for `dibs serve`: create, list and revoke them.",
    "worker": "Run jobs until told to stop.",
    "workers": "List the workers: who they are, since when, and when they last beat.",
}
PLACES = {"workers": "queues"}  # those that are not in the module of their name


class Commands(click.Group):
    """Loads a command when it is called, and shows our own errors as click shows its own."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"dibs.cli.{PLACES.get(name, name)}")
        found: click.Command = getattr(module, name)
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, context: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name, help=said) for name, said in COMMANDS.items() if name.startswith(incomplete)]

    def invoke(self, context: click.Context) -> Any:
        from dibs.errors import DibsError

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


def main() -> None:
    """The entry point."""
    sys.exit(dibs())
