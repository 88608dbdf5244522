"""What a command works on: an app as `module:attribute`, or a database URL."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dibs.app import Dibs
from dibs.config import app_path

F = TypeVar("F", bound=Callable[..., Any])


def target_argument(command: F) -> F:
    """The first argument of every command."""
    return click.argument("target", required=False, metavar="[APP|URL]")(command)


def load(target: str | None) -> Dibs:
    """The app, imported from the current directory, or one that only knows its database."""
    text = app_path(target)
    if text is None:
        raise click.UsageError("Which app? Say module:attribute (like shop.jobs:app), a database URL, or set DIBS_APP.")
    if "://" in text:
        return Dibs(text)
    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        raise click.UsageError(f"{text!r} is neither module:attribute (like shop.jobs:app) nor a database URL.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"Cannot import {module_name!r}: {error}. Are you in the project's directory?"
        ) from error
    app = getattr(module, attribute, None)
    if not isinstance(app, Dibs):
        found = "there is no such attribute" if app is None else f"it is a {type(app).__name__}"
        raise click.ClickException(f"{text} is not a Dibs app: {found}.")
    return app
