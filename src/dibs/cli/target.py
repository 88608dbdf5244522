"""What a command works on: an app as `module:attribute`, or a database URL."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import click

from dibs.app import Dibs
from dibs.config import app_path
from dibs.errors import DibsError

F = TypeVar("F", bound=Callable[..., Any])


def target_argument(command: F) -> F:
    """The first argument of every command."""
    return click.argument("target", required=False, metavar="[APP|URL]")(command)


def load(target: str | None, *, new: bool = False) -> Dibs:
    """The app, imported from the current directory, or one that only knows its database; `new`: that may be missing."""
    text = app_path(target)
    if text is None:
        raise click.UsageError("Which app? Say module:attribute (like shop.jobs:app), a database URL, or set DIBS_APP.")
    app = Dibs(text) if "://" in text else _app(text)
    click.get_current_context().call_on_close(app.close)
    if "://" in text and not new and not app.engine.exists:
        raise click.ClickException(f"There is no file at {text}. Is that right? dibs db migrate makes a new one.")
    return app


def _app(text: str) -> Dibs:
    module_name, colon, attribute = text.partition(":")
    if not colon or not module_name or not attribute:
        raise click.UsageError(f"{text!r} is neither module:attribute (like shop.jobs:app) nor a database URL.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    module = _imported(module_name)
    app = getattr(module, attribute, None)
    if not isinstance(app, Dibs):
        found = f"it is a {type(app).__name__}" if hasattr(module, attribute) else "there is no such attribute"
        raise click.ClickException(f"{text} is not a Dibs app: {found}.")
    return app


def load_with_tasks(target: str | None) -> Dibs:
    """The same, for commands that run jobs: a URL alone will not do."""
    app = load(target, new=True)
    if not app.tasks:
        raise click.ClickException(
            f"{app_path(target)} declares no task, so there is nothing to run. "
            "Name the app, as module:attribute (like shop.jobs:app), with the modules of its tasks imported."
        )
    return app


def load_and_rest(args: Sequence[str], *, names: int = 0) -> tuple[Dibs, list[str]]:
    """The app that the first argument names, if it names one (else DIBS_APP), and the other arguments. Of these so many
    are names, which may have a colon as well: with DIBS_APP the first is the app only if there are more."""
    if args and ":" in args[0] and (len(args) > names or app_path(None) is None):
        return load(args[0]), list(args[1:])
    return load(None), list(args)


def only(names: Sequence[str], what: str) -> str:
    """The one thing that a command is about."""
    if len(names) != 1:
        raise click.UsageError(f"Which {what}? Name one.")
    return names[0]


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except DibsError:
        raise  # the app's own URL or settings: the sentence says it all
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            message = f"Cannot import {name!r}: {error}. Are you in the project's directory?"
            raise click.ClickException(message) from error
        raise click.ClickException(
            f"Importing {name!r} failed: {type(error).__name__}: {error}{_where(error)}. "
            f"The whole of it is shown by: python -c 'import {name}'"
        ) from error


def _where(error: BaseException) -> str:
    """The last line of the user's own that was reached."""
    if isinstance(error, SyntaxError):
        return ""  # it says so itself
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    return f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""


def queue_names(text: str | None) -> Sequence[str] | Mapping[str, float] | None:
    """Names joined by commas, in order; or each with its weight, as in mail=3,media=1."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise click.BadParameter("names no queue. Leave it out to serve every queue.", param_hint="--queues")
    if not any("=" in part for part in parts):
        return parts
    weights: dict[str, float] = {}
    for part in parts:
        name, _, weight = part.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise click.BadParameter(
                f"{part!r} has no weight: either all have one, as in mail=3,media=1, or none.", param_hint="--queues"
            ) from None
    return weights
