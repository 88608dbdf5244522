"""`dibs adopt`: what a table of yours lacks to be a good queue; do it; look how it is."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dibs.adopted.apply import apply as carry_out
from dibs.adopted.check import check as look_at
from dibs.adopted.check import plan as plan_for
from dibs.adopted.inspect import inspect
from dibs.adopted.plan import Improvement
from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_extras import recovers, wakes
from dibs.adopted.source import Adopted
from dibs.app import Dibs
from dibs.cli.render import json_option, print_json
from dibs.cli.target import load, target_argument

table_option = click.option(
    "--table", "names", metavar="NAME", multiple=True, help="Only this table. Say it again for more of them."
)
existing_option = click.option(
    "--existing", metavar="WORD", help="The status of rows that are there already, if that column is to be added."
)
wake_option = click.option(
    "--wake", is_flag=True, help="Also triggers that tell workers of new rows at once (PostgreSQL)."
)
cron_option = click.option(
    "--cron", is_flag=True, help="Also the recovery as a function for the database's own cron (PostgreSQL)."
)


@click.group()
def adopt() -> None:
    """Tables of yours that are queues: plan what they need, apply it, check them."""


@adopt.command()
@target_argument
@table_option
@existing_option
@wake_option
@cron_option
def plan(target: str | None, names: tuple[str, ...], existing: str | None, wake: bool, cron: bool) -> None:
    """Print what the adopted tables lack, as plain SQL with a reason for each statement. Changes nothing.

    \b
    Example: dibs adopt plan shop.jobs:app
             dibs adopt plan shop.jobs:app --table stickers --existing completed > adopt.sql
    """
    app, tables = _meant(target, names)
    for table in tables:
        found = _wanted(app, table, existing, wake, cron)
        click.echo(f"-- {table.name}: {'nothing is missing' if not found else f'{len(found)} statements'}")
        for each in found:
            click.echo(f"\n-- {each.why}\n{each.sql};")


@adopt.command()
@target_argument
@table_option
@existing_option
@wake_option
@cron_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def apply(target: str | None, names: tuple[str, ...], existing: str | None, wake: bool, cron: bool, yes: bool) -> None:
    """Do what `plan` prints, after asking. PostgreSQL builds indexes while your application goes on, unless the table
    is partitioned.

    \b
    Example: dibs adopt apply shop.jobs:app --yes
    """
    app, tables = _meant(target, names)
    wanted = [each for table in tables for each in _wanted(app, table, existing, wake, cron)]
    if not wanted:
        click.echo("nothing to do: nothing is missing")
        return
    for each in wanted:
        click.echo(f"-- {each.why}\n{each.sql};\n")
    if not yes:
        click.confirm(f"Run these {len(wanted)} statements?", abort=True)
    for number, each in enumerate(wanted, 1):
        carry_out(each, app.engine, tell=click.echo)
        click.secho(f"{number} of {len(wanted)}: done", fg="green")


@adopt.command()
@target_argument
@table_option
@json_option
@click.pass_context
def check(context: click.Context, target: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Say how the adopted tables are; exits 1 when something is wrong. Reads them whole.

    \b
    Example: dibs adopt check shop.jobs:app
    """
    app, tables = _meant(target, names)
    checked = [look_at(table, app.engine) for table in tables]
    if as_json:
        print_json(
            [
                {
                    "table": each.name,
                    "ok": not each.findings,
                    "findings": [{"problem": found.problem, "detail": found.detail} for found in each.findings],
                    "plan": list(each.explained),
                }
                for each in checked
            ]
        )
    else:
        for each in checked:
            click.secho(
                f"{each.name}: {'good' if not each.findings else ''}", fg="green" if not each.findings else None
            )
            for found in each.findings:
                click.secho(f"  {found.problem}", fg="yellow")
                for line in found.detail.splitlines():
                    click.echo(f"    {line}")
            if each.explained:
                click.echo("  how a claim finds its rows:")
                for line in each.explained:
                    click.echo(f"    {line}")
    context.exit(1 if any(each.findings for each in checked) else 0)


def _meant(target: str | None, names: Sequence[str]) -> tuple[Dibs, list[Adopted]]:
    """The app, and those of its tables that were named; all of them if none was."""
    app = load(target)
    if not app.adopted:
        raise click.ClickException(
            "This app adopts no table. Name the app that calls app.adopt(...), as module:attribute (shop.jobs:app)."
        )
    if unknown := [name for name in names if name not in app.adopted]:
        raise click.ClickException(f"This app does not adopt {unknown[0]}; it adopts {', '.join(app.adopted)}.")
    return app, [table for table in app.adopted.values() if not names or table.name in names]


def _wanted(app: Dibs, table: Adopted, existing: str | None, wake: bool, cron: bool) -> list[Improvement]:
    found = plan_for(table, app.engine, existing)
    if not (wake or cron):
        return found
    if app.engine.name != "postgres":
        raise click.UsageError("--wake and --cron are for PostgreSQL: SQLite tells of changes itself.")
    if any(each.sql.startswith("alter table") for each in found):
        raise click.ClickException("First add the columns: dibs adopt apply, without --wake and --cron.")
    texts = PostgresTable(table.adoption, app.engine.run(inspect(table.adoption)), app.engine.dialect.own)
    if wake:
        found += [Improvement(sql, "workers hear of new rows at once") for sql in wakes(texts)]
    if cron:
        others = ", and rows left behind" if table.adoption.started_at else "; not what others left, without started_at"
        why = f"for the database's own cron: rows of dead workers wait again{others}"
        found.append(Improvement(recovers(texts, table.adoption.stuck_after), why))
    return found
