"""The log of a worker: a line for each event on standard error, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
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
    """For people: a line for each event. Of an error it says what it is and where; JSON has all of it."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%SZ")
        self.colour, self.converter = colour, time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            said += f": {_named(record.exc_info[1])}"
        text = f"{self.formatTime(record, self.datefmt)} {record.levelname:<7} {' | '.join(said.splitlines())}"
        colour = COLOURS.get(record.levelno)
        return click.style(text, fg=colour) if self.colour and colour else text


def _named(error: BaseException) -> str:
    """What it is, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class Json(logging.Formatter):
    """For machines."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = {"time": moment, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
