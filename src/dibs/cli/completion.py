"""`dibs completion`: what a shell has to read so that Tab completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes Tab complete in your shell.

    \b
    Example: dibs completion fish > ~/.config/fish/completions/dibs.fish
             echo 'eval "$(dibs completion bash)"' >> ~/.bashrc
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "dibs", "_DIBS_COMPLETE").source())
