"""What another server says when it refuses: the error envelope as it is met in the wild."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

_LONGEST_RETRY_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """An error envelope, as far as it is one.

    Attributes:
        message: empty where there is none.
        param: the field that is wrong.
        code: of the error, where it is a string.
    """

    message: str = ""
    param: str | None = None
    code: str | None = None


def told(content: bytes) -> Told:
    """What a body says of a refusal."""
    try:
        error = orjson.loads(content)["error"]
        message, param, code = str(error["message"]), error.get("param"), error.get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return Told()
    return Told(message, param if isinstance(param, str) else None, code if isinstance(code, str) else None)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks for, a minute at most; 1 where it asks for nothing that can be read."""
    wait = headers.get("retry-after", "")
    return min(float(wait), _LONGEST_RETRY_AFTER) if wait.isdecimal() and len(wait) < 9 else 1.0
