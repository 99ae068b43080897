"""How log lines are written: as JSON or for a console, each line one event, whoever logged it."""

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor

from mulgil.telemetry.names import ACCESS_FIELDS

Style = Literal["json", "console"]

_EXTRAS = (*ACCESS_FIELDS, "vllm_process_name")
_DELETE = "\x7f"


def configure(level: str, style: Style, stream: TextIO | None = None) -> None:
    """Have all loggers of this process write to *stream* (default: stderr) in *style*, from *level* up."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(style, colours=stream.isatty()))
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())


def configuration_of_vllm(level: str, style: Style) -> dict[str, Any]:
    """The same for vLLM's loggers, in this process and in those that vLLM starts, as `logging.config` wants it."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"mulgil": {"()": "mulgil.telemetry.logs.formatter", "style": style}},
        "handlers": {"mulgil": {"class": "logging.StreamHandler", "formatter": "mulgil", "stream": "ext://sys.stderr"}},
        "loggers": {"vllm": {"handlers": ["mulgil"], "level": level.upper(), "propagate": False}},
    }


def formatter(style: Style, colours: bool = False) -> logging.Formatter:
    """Makes a line of a record. Nothing in a record can begin a line of its own, or move a terminal's cursor."""
    renderer: list[Processor]
    if style == "json":
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    else:
        renderer = [
            structlog.processors.format_exc_info,
            _printable,
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(_EXTRAS),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _with_process, *renderer],
    )


def escaped(text: str) -> str:
    """*text* with everything in it that does not print written as an escape: line ends, terminal codes, direction
    marks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _with_process(_: Any, __: str, event: EventDict) -> EventDict:
    """Which of vLLM's processes a line is from."""
    name = event.pop("vllm_process_name", None)
    return {**event, "process": name} if name else event


def _json(event: Mapping[str, Any], **_: Any) -> str:
    try:
        line = orjson.dumps(event, default=str).decode()
    except (TypeError, ValueError):  # half a character, or a number that is too large
        line = ""
    if line and line.isprintable():
        return line
    # ASCII alone, so that what no JSON has to escape is escaped too.
    return json.dumps(event, default=str).replace(_DELETE, "\\u007f")


def _printable(_: Any, __: str, event: EventDict) -> EventDict:
    """For a console: a traceback keeps its lines, each indented, so that none looks like the beginning of another."""
    trace = event.pop("exception", None)
    shown: EventDict = {name: escaped(value) if isinstance(value, str) else value for name, value in event.items()}
    if trace is not None:
        shown["exception"] = "\n".join(f"    {escaped(line)}" for line in re.split(r"\r\n|\r|\n", str(trace)))
    return shown
