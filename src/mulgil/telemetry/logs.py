"""How log lines are written: as JSON or for a console, each line one event, whoever logged it."""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson
import structlog
from structlog.typing import EventDict

Style = Literal["json", "console"]

_EXTRAS = ("request_id", "vllm_process_name")
_TALKATIVE = ("alembic", "httpx2")  # one tells at each start that there was nothing to do, one each call and its URL
_OURS = "MainProcess"  # what vLLM, once it is imported, says of every record of this process
_DELETE = "\x7f"
_PLAIN = re.compile(r"[^\s\"'=]+")
_LINE_END = re.compile(r"\r\n|\r|\n")


def configure(level: str, style: Style, stream: TextIO | None = None) -> None:
    """Have all loggers of this process write to *stream* (default: stderr) in *style*, from *level* up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter(style))
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def configuration_of_vllm(level: str, style: Style) -> dict[str, Any]:
    """The same for vLLM's loggers, in this process and in those that vLLM starts, as `logging.config` wants it."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"mulgil": {"()": "mulgil.telemetry.logs.formatter", "style": style}},
        "handlers": {"mulgil": {"class": "logging.StreamHandler", "formatter": "mulgil", "stream": "ext://sys.stderr"}},
        "loggers": {"vllm": {"handlers": ["mulgil"], "level": level.upper(), "propagate": False}},
    }


def formatter(style: Style) -> logging.Formatter:
    """Makes a line of a record. Nothing in a record can begin a line of its own, or move a terminal's cursor."""
    return _Formatter(json_line if style == "json" else console_line)


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """structlog's, with a short way for records that bring their fields with them, of which every request makes one.

    Args:
        render: makes the line of an event.
    """

    def __init__(self, render: Any) -> None:
        super().__init__(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(_EXTRAS)],
            processors=[_arranged, structlog.processors.format_exc_info, lambda _, __, event: render(event)],
        )
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] | None = getattr(record, "fields", None)
        if fields is None:
            return super().format(record)
        line: str = self._render({**_head(record), "event": record.getMessage(), **fields})
        return line


def json_line(event: Mapping[str, Any]) -> str:
    """*event* as a JSON object on one line, which prints as it is."""
    try:
        line = orjson.dumps(event, default=str).decode()
    except (TypeError, ValueError):  # half a character, or a number that is too large
        line = ""
    if line and line.isprintable():
        return line
    # ASCII alone, so that what no JSON has to escape is escaped too.
    return json.dumps(event, default=str).replace(_DELETE, "\\u007f")


def console_line(event: Mapping[str, Any]) -> str:
    """*event* for people: what happened, then `name=value`.

    A traceback keeps its lines, each indented, so that none looks like the beginning of another.
    """
    shown = dict(event)
    head = f"{shown.pop('timestamp')} {shown.pop('level'):7} {shown.pop('logger')}: {shown.pop('event')}"
    trace = shown.pop("exception", None)
    line = " ".join([escaped(head), *(f"{name}={_value(value)}" for name, value in shown.items())])
    if trace is None:
        return line
    return "\n".join([line, *(f"    {escaped(one)}" for one in _LINE_END.split(str(trace)))])


def escaped(text: str) -> str:
    """*text*, with an escape for each character that does not print: line ends, terminal codes, direction marks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _value(value: object) -> str:
    if not isinstance(value, str):
        return str(value)
    # Quoted where it could be taken for the next field.
    return escaped(value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False))


def _head(record: logging.LogRecord) -> dict[str, Any]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"timestamp": f"{moment[:-6]}Z", "level": record.levelname.lower(), "logger": record.name}


def _arranged(_: Any, __: str, event: EventDict) -> EventDict:
    """The fields that every line has, the first ones; and which of vLLM's processes it is from."""
    record = event.pop("_record")
    del event["_from_structlog"]
    process = event.pop("vllm_process_name", _OURS)
    return {**_head(record), **event} if process == _OURS else {**_head(record), "process": process, **event}
