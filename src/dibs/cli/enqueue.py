"""`dibs enqueue`: add a job from the shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from dibs.calls import Task
from dibs.cli.render import job_as_dict, json_option, print_json
from dibs.cli.target import load_and_rest
from dibs.errors import UnknownTask
from dibs.job import Job, checked_name
from dibs.payload import encode
from dibs.task import Options, new_job


@click.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] TASK")
@click.option(
    "--payload", default="{}", metavar="JSON", help="The arguments, as a JSON object; - reads standard input."
)
@click.option("--queue", help="Another queue than the task's own.")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher runs first (5).")
@click.option("--delay", type=click.FloatRange(0), metavar="SECONDS", help="Not before so many seconds have passed.")
@click.option("--max-attempts", type=click.IntRange(1), help="How often it may be tried.")
@click.option("--unique-key", help="Do not add it while another job of the task has this key.")
@json_option
def enqueue(args: Sequence[str], payload: str, as_json: bool, **options: Any) -> None:
    """Add a job. With an app the arguments are checked; with a database URL they are taken as they are.

    \b
    Example: dibs enqueue shop.jobs:app shop.jobs.mail --payload '{"to": "ada@example.org"}'
    """
    app, rest = load_and_rest(args, names=1)
    if len(rest) != 1:
        raise click.UsageError("Which task? Name one, like shop.jobs.mail.")
    said = {name: value for name, value in options.items() if value is not None}
    arguments = _arguments(sys.stdin.read() if payload == "-" else payload)
    if app.tasks:
        declared = app.tasks.get(rest[0])
        if declared is None:
            raise UnknownTask(rest[0], app.tasks)
        job: Job = Task[..., Any](app, declared).using(**said).enqueue(**arguments)
    else:
        job = app.add(
            new_job(checked_name("type", rest[0]), encode(arguments, app.settings.max_payload), Options().but(**said))
        )
    if as_json:
        print_json({**job_as_dict(job, app.settings.masked), "created": job.created})
    elif job.created:
        click.echo(f"added job {job.id}")
    else:
        click.echo(f"job {job.id} has this key already; nothing was added")


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"it is no JSON: {error}", param_hint="--payload") from None
    except RecursionError:
        raise click.BadParameter("it is no JSON: it is nested too deeply", param_hint="--payload") from None
    if not isinstance(arguments, dict):
        raise click.BadParameter('it has to be an object, as in \'{"to": "ada@example.org"}\'.', param_hint="--payload")
    return arguments
