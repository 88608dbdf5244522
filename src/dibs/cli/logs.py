"""The log of a worker: a line for each event on standard error, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import click

from dibs.lifecycle import SUCCESS, Change
from dibs.worker.logs import JobLog, log, said

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


def set_up(form: str, level: str) -> JobLog:
    """Everything goes to standard error; how the lines of jobs get there."""
    lines = Lines(sys.stderr, form) if level in ("debug", "info") else JobLog()
    handler = Handler(lines)
    handler.setFormatter(Json() if form == "json" else Text(colour=sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    return lines


class Handler(logging.StreamHandler[TextIO]):
    """After the lines of jobs that came before."""

    def __init__(self, lines: JobLog) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.flush()
        super().emit(record)


class Lines(JobLog):
    """Lines of jobs, written a turn's worth at once: a record of `logging` for each would be a third of the work."""

    def __init__(self, stream: TextIO, form: str) -> None:
        self.stream, self.json = stream, form == "json"
        self.unwritten: list[str] = []
        self.second, self.moment = 0, ""

    def claimed(self, job: int | str, worker: str) -> None:
        """It begins."""
        self._add(f"Job {job} claimed by {worker}")

    def ended(self, job: int | str, change: Change, seconds: float) -> None:
        """It came to this."""
        if change is SUCCESS:  # most
            self._add(f"Job {job} completed in {seconds:.1f}s")
            return
        level, text = said(change, seconds)
        if level == logging.INFO:
            self._add(f"Job {job} {text}")
        else:
            log.log(level, "Job %s %s", job, text)  # the handler writes out what came before

    def flush(self) -> None:
        """All at once."""
        if self.unwritten:
            lines, self.unwritten = self.unwritten, []
            self.stream.write("".join(lines))
            self.stream.flush()

    def _add(self, message: str) -> None:
        now = int(time.time())
        if now != self.second:
            self.second, self.moment = now, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        if self.json:  # neither labels of jobs nor names of workers need escaping
            self.unwritten.append(f'{{"time": "{self.moment}", "level": "info", "message": "{message}"}}\n')
        else:
            self.unwritten.append(f"{self.moment} INFO    {message}\n")


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
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = {"time": moment, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
