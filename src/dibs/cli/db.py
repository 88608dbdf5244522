"""`dibs db`: migrate, status, sql."""

from __future__ import annotations

import asyncio

import click

from dibs.app import Dibs
from dibs.cli.render import json_option, print_json
from dibs.cli.target import load, target_argument
from dibs.engines import migrate as migrations
from dibs.errors import NewerDatabase
from dibs.worker.housekeeping import Housekeeping, Kept


@click.group()
def db() -> None:
    """The schema in your database: bring it up to date, look at it, print it."""


@db.command()
@target_argument
@json_option
def migrate(target: str | None, as_json: bool) -> None:
    """Bring the schema up to date. Safe to run from many places at once.

    \b
    Example: dibs db migrate shop.jobs:app
             dibs db migrate postgresql://localhost/shop
    """
    app = load(target, new=True)
    done = app.migrate()
    if as_json:
        print_json({"applied": done})
        return
    for title in done:
        click.secho(f"applied {title}", fg="green")
    if not done:
        click.echo("nothing to do: the schema is up to date")


@db.command()
@target_argument
@json_option
@click.pass_context
def status(context: click.Context, target: str | None, as_json: bool) -> None:
    """Say which migrations the database has had; exits 1 when some are missing.

    \b
    Example: dibs db status shop.jobs:app
    """
    rows = _status(load(target, new=True))
    if as_json:
        print_json([{"number": number, "name": name, "applied": done} for number, name, done in rows])
    else:
        for number, name, done in rows:
            click.secho(f"{number:04} {name:<30} {'applied' if done else 'missing'}", fg="green" if done else "yellow")
    context.exit(0 if all(done for *_, done in rows) else 1)


@db.command()
@target_argument
def sql(target: str | None) -> None:
    """Print every migration as plain SQL, for people who run their own.

    \b
    Example: dibs db sql postgresql://localhost/shop > dibs.sql
    """
    engine = load(target, new=True).engine
    click.echo(migrations.script(engine.name, engine.dialect, engine.schema), nl=False)


@db.command()
@target_argument
@json_option
def prune(target: str | None, as_json: bool) -> None:
    """Forget what is past its time, now. Workers do it by themselves every ten minutes.

    \b
    Example: dibs db prune shop.jobs:app
    """
    app = load(target)

    async def clean() -> Kept:
        try:
            return await Housekeeping(app.engine).run_once()
        finally:
            await app.aclose()

    kept = asyncio.run(clean())
    if as_json:
        print_json(kept._asdict())
    else:
        click.echo("done")


def _status(app: Dibs) -> list[tuple[int, str, bool]]:
    applied = dict(app.engine.applied())
    known = {each.number: each.name for each in migrations.migrations(app.engine.name)}
    if newer := [number for number in applied if number not in known]:
        raise NewerDatabase(
            f"The database has migration {max(newer)}, which this dibs does not know. Upgrade dibs here."
        )
    return [(number, name, number in applied) for number, name in known.items()]
