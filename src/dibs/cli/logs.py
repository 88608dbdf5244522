"""The log of a worker: a line for each event on standard error, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


def log_options(command: F) -> F:
    """How much to log, and in what form."""
    command = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="How much to say.",
    )(command)
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="One line for each event, either way.",
    )(command)


def set_up(form: str, level: str) -> None:
    """Everything goes to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(Json() if form == "json" else Text(colour=sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class Text(logging.Formatter):
    """For people."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.colour, self.converter = colour, time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = COLOURS.get(record.levelno)
        return click.style(text, fg=colour) if self.colour and colour else text


class Json(logging.Formatter):
    """For machines."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": moment, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
