"""From the bytes of a request to a checked wire type, or to an error that names the field."""

import gc
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, Literal, TypeVar

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from mulgil.api.disconnect import ClientGone, unless_gone
from mulgil.aside import Aside
from mulgil.errors import (
    InvalidFieldError,
    InvalidJSONError,
    MulgilError,
    RequestTooLargeError,
    UnknownParameterError,
    UnsupportedContentTypeError,
)
from mulgil.schemas.base import RequestLimits, RequestModel

M = TypeVar("M", bound=RequestModel)
T = TypeVar("T")

_LONGEST_ECHO = 32
_LONGEST_CONTENT_TYPE = 256
_STEP = 64 * 1024
_NESTING = (dict, list)  # not dict | list, which would be made anew for each of a million values


@dataclass(frozen=True, slots=True)
class BodyRules:
    """What a request body may be.

    Attributes:
        max_bytes: largest body.
        max_depth: deepest nesting of arrays and objects.
        max_parts: most arrays, objects and fields of objects.
        unknown_fields: whether an unknown top-level field is ignored or refused.
        limits: bounds of single fields.
        aside: where bodies that are not small are read and checked.
    """

    max_bytes: int
    max_depth: int
    max_parts: int = 131_072
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    limits: RequestLimits = field(default_factory=RequestLimits)
    aside: Aside = field(default_factory=Aside)


async def read_checked(request: Request, rules: BodyRules, check: Callable[[dict[str, Any]], T]) -> T:
    """What *check* makes of the JSON object in the body. Others are served meanwhile, however large it is.

    Raises:
        UnsupportedContentTypeError: it is not declared as JSON.
        RequestTooLargeError: it is larger, or has more parts, than the rules allow.
        InvalidJSONError: it is no JSON object, or nested too deeply.
        ClientGone: the client left while sending it, or before it was checked.
        MulgilError: *check* refuses it.
    """
    _check_content_type(request.headers.get("content-type", ""))
    raw = await _read(request, rules.max_bytes)
    if not rules.aside.takes(len(raw)):
        return check(parsed(raw, rules))  # two tasks would cost more than the work
    checking = rules.aside.run(lambda: check(parsed(raw, rules)), size=len(raw))
    return await unless_gone(request.receive, checking)


def validated(model: type[M], body: dict[str, Any], rules: BodyRules) -> M:
    """*body* as *model*.

    Raises:
        InvalidFieldError: the first field that is wrong.
        UnknownParameterError: a field nobody knows, where the rules refuse those.
    """
    if rules.unknown_fields == "reject" and (unknown := body.keys() - model.known_fields()):
        name = min(unknown)[:64]
        raise UnknownParameterError(f"Unknown parameter: '{name}'.", param=name)
    try:
        with _uncollected():
            return model.model_validate(body, context=rules.limits)
    except ValidationError as error:
        raise field_error(error.errors(include_url=False)[0]) from None


def _check_content_type(value: str) -> None:
    if value == "application/json":
        return
    if len(value) > _LONGEST_CONTENT_TYPE or not value.isascii() or not _is_json(value):
        raise UnsupportedContentTypeError(
            f"Unsupported content type: '{value[:64]}'. This API only accepts 'application/json' requests."
        )


def _is_json(content_type: str) -> bool:
    message = Message()  # takes seconds over 100 kB of semicolons
    message["content-type"] = content_type
    charset = message.get_content_charset("utf-8")
    return message.get_content_type() == "application/json" and charset in ("utf-8", "us-ascii")


async def _read(request: Request, most: int) -> bytes:
    too_large = RequestTooLargeError(f"The body of the request is larger than {most} bytes.")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise too_large
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise too_large
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection within: on many small objects it takes most of the time, and there is nothing to find."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parsed(raw: bytes, rules: BodyRules) -> dict[str, Any]:
    """The JSON object in *raw*.

    Raises:
        RequestTooLargeError: it has more parts than the rules allow.
        InvalidJSONError: it is none, or nested too deeply.
    """
    with _uncollected():
        return _parsed(raw, rules)


def _parsed(raw: bytes, rules: BodyRules) -> dict[str, Any]:
    # They are all made in one step, in which nothing else runs; texts may have as many brackets as they like.
    if _marks(raw) > rules.max_parts and _parts(raw) > rules.max_parts:
        raise RequestTooLargeError(
            f"The body of the request has more than {rules.max_parts} arrays, objects and fields."
        )
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # orjson refuses NaN, Infinity, numbers beyond a double and lone surrogates by itself.
        raise InvalidJSONError(f"We could not parse the JSON body of your request: {error.msg}.") from None
    if not isinstance(body, dict):
        raise InvalidJSONError("The body of the request must be a JSON object.")
    if _marks(raw) > rules.max_depth and _deeper_than(body, rules.max_depth):
        raise InvalidJSONError(f"The body of the request is nested more than {rules.max_depth} levels deep.")
    return body


def _marks(raw: bytes) -> int:
    return raw.count(b"[") + raw.count(b"{") + raw.count(b":")


def _parts(raw: bytes) -> int:
    """Arrays, objects and fields in *raw*; where it is no JSON, up to its first fault."""
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    count = within = 0
    for start in range(0, len(unescaped), _STEP):  # in steps, so that other threads get their turn
        pieces = unescaped[start : start + _STEP].split(b'"')
        count += _marks(b"".join(pieces[within::2]))
        within ^= (len(pieces) - 1) % 2
    return count


def _deeper_than(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _NESTING)
        ]
        if not level:
            return False
    return True


def field_error(details: ErrorDetails) -> MulgilError:
    """The first validation error, in OpenAI's words; never repeats what could be a prompt."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    param = _path(details["loc"])
    if beside := context.get("field"):  # wrong in the light of the fields around it
        param = f"{param}.{beside}" if param else str(beside)
    if kind.startswith("missing"):
        return InvalidFieldError(
            f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
        )
    code, message = _explanation(kind, context, value, details["msg"])
    return InvalidFieldError(f"Invalid '{param}': {message}.", param=param, code=code)


def _path(steps: Iterable[int | str]) -> str:
    """`('messages', 0, '<parts>', 1, 'type')` as `messages[0].content[1].type` would be: tags left out."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<") and step != "[key]":
            path += f".{step}" if path else step
    return path[:256]


_BOUNDS = {
    "less_than_equal": ("above_max_value", "<=", "le"),
    "less_than": ("above_max_value", "<", "lt"),
    "greater_than_equal": ("below_min_value", ">=", "ge"),
    "greater_than": ("below_min_value", ">", "gt"),
}
_LENGTHS = {
    "too_long": ("array_above_max_length", "at most {max_length} entries"),
    "too_short": ("array_below_min_length", "at least {min_length} entries"),
    "string_too_long": ("string_above_max_length", "at most {max_length} characters"),
    "string_too_short": ("string_below_min_length", "at least {min_length} characters"),
}
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "string": "a string",
    "bool": "a boolean",
    "list": "an array",
    "dict": "an object",
    "model": "an object",
}


def _explanation(kind: str, context: dict[str, Any], value: Any, otherwise: str) -> tuple[str, str]:
    """The code, and the reason without the field's name and the full stop."""
    if kind in _BOUNDS:
        direction, sign, key = _BOUNDS[kind]
        code = f"{'decimal' if isinstance(context[key], float) else 'integer'}_{direction}"
        reason = code.replace("_", " ").replace("max ", "maximum ").replace("min ", "minimum ")
        return code, f"{reason}. Expected a value {sign} {_plain(context[key])}, but got {value} instead"
    if kind in _LENGTHS:
        code, expectation = _LENGTHS[kind]
        reason = code.replace("_", " ").replace("max ", "maximum ").replace("min ", "minimum ")
        return code, f"{reason}. Expected {expectation.format_map(context)}"
    if kind == "literal_error":
        if not isinstance(value, str):
            return "invalid_type", f"expected one of {context['expected']}, but got {_named(value)} instead"
        echo = f"'{value}' is not" if len(value) <= _LONGEST_ECHO else "it is not"
        return "invalid_value", f"{echo} one of {context['expected']}"
    if wanted := _TYPES.get(re.sub(r"_(type|parsing|from_float)$|_attributes_type$", "", kind)):
        return "invalid_type", f"expected {wanted}, but got {_named(value)} instead"
    return ("invalid_type" if kind == "invalid_content" else "invalid_value"), otherwise.rstrip(".")


def _plain(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _named(value: Any) -> str:
    if isinstance(value, float) and abs(value) >= 2**63:
        return "a number beyond 64 bits"  # orjson reads such an integer as a float
    names = {bool: "a boolean", int: "an integer", float: "a decimal number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")
