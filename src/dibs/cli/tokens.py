"""`dibs tokens`: who may ask a server for what."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dibs.cli.render import ago, json_option, print_json, table
from dibs.cli.target import load, load_and_rest, only, target_argument
from dibs.operations import tokens as stored
from dibs.tokens import SCOPES, Known, checked_scopes, hashed, new_token


@click.group()
def tokens() -> None:
    """Tokens for `dibs serve`: create, list and revoke them. Only their hashes are stored."""


@tokens.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] NAME")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help="What it is good for.")
@json_option
def create(args: Sequence[str], scopes: tuple[str, ...], as_json: bool) -> None:
    """Make a token, and print it: it is shown this once. A scope may be said several times.

    \b
    Example: dibs tokens create shop.jobs:app website --scope enqueue --scope read
    """
    app, rest = load_and_rest(args, names=1)
    name, token = only(rest, "token"), new_token()
    app.engine.run(stored.add(Known(name, hashed(token), checked_scopes(scopes))))
    if as_json:
        print_json({"name": name, "scopes": sorted(set(scopes)), "token": token})
    else:
        click.echo(token)


@tokens.command("list")
@target_argument
@json_option
def list_(target: str | None, as_json: bool) -> None:
    """Which tokens there are, and what they are good for.

    \b
    Example: dibs tokens list shop.jobs:app
    """
    rows = load(target).engine.run(stored.list_tokens())
    shown = [(row.known.name, sorted(row.known.scopes), row.created_at) for row in rows]
    if as_json:
        print_json([{"name": name, "scopes": scopes, "created_at": at} for name, scopes, at in shown])
        return
    table(
        ("name", "scopes", "created"),
        [(name, " ".join(scopes), ago(at)) for name, scopes, at in shown],
        empty="no tokens: whoever is on this machine may do everything",
    )


@tokens.command()
@click.argument("args", nargs=-1, required=True, metavar="[APP|URL] NAME")
@json_option
def revoke(args: Sequence[str], as_json: bool) -> None:
    """Make a token good for nothing from now on; servers notice within 5 seconds.

    \b
    Example: dibs tokens revoke shop.jobs:app website
    """
    app, rest = load_and_rest(args, names=1)
    name = only(rest, "token")
    if not app.engine.run(stored.revoke(name)):
        raise click.ClickException(f"There is no token named {name!r}.")
    if as_json:
        print_json({"revoked": name})
    else:
        click.echo(f"revoked {name}")
