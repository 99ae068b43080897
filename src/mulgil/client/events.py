"""Events of an event stream, made of bytes wherever the network has cut them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        data: its text.
        type: `message` unless the server named it.
        id: the last id that the server has sent, with this event or an earlier one; empty before the first.
    """

    data: str
    type: str = "message"
    id: str = ""


class EventParser:
    """Reads as an EventSource does: an event counts, and so does its id, when the blank line behind it has arrived."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._after_carriage_return = False
        self._first = True
        self._data: list[str] = []
        self._type = ""
        self._id = ""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that these bytes complete."""
        for line in self._lines(piece):
            if line:
                self._take(line)
                continue
            if self._data:
                yield Event("\n".join(self._data), self._type or "message", self._id)
            self._data, self._type = [], ""

    def _lines(self, piece: bytes) -> Iterator[bytes]:
        if not piece:
            return
        if self._after_carriage_return and piece.startswith(b"\n"):  # the line ended with the piece before
            piece = piece[1:]
            self._after_carriage_return = False
            if not piece:
                return
        self._after_carriage_return = piece.endswith(b"\r")
        first, *others = _LINE_END.split(piece)
        # Only what is new is looked at, so that a long line in small pieces costs no more than in one.
        self._rest.append(first)
        for line in others:
            whole, self._rest = b"".join(self._rest), [line]
            yield whole.removeprefix(_BYTE_ORDER_MARK) if self._first else whole
            self._first = False

    def _take(self, line: bytes) -> None:
        field, _, text = line.decode(errors="replace").partition(":")
        value = text.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._type = value
        elif field == "id" and "\0" not in value:
            self._id = value
