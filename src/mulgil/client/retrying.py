"""Which failures are worth another try, and after how long."""

import asyncio
import email.utils
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

# 429s that no waiting heals.
_NEVER = frozenset({"insufficient_quota", "request_exceeds_limit"})
# Beyond it every pause is at its cap, and a power would overflow.
_MOST_DOUBLINGS = 60
_LATER_AT_MOST = 0.1


@dataclass(frozen=True)
class BackOff:
    """How long to wait before another try.

    What the server says goes first: `retry-after-ms`, else `retry-after`, and up to a tenth longer, so that not all
    come back at once; never earlier. Where it says nothing, anything between nothing and `base`, doubled with each
    try up to `cap` ("full jitter").

    Attributes:
        base: seconds, at most, before the second try.
        cap: seconds, at most, before any try.
        longest: seconds; where the server says more than this, there is no other try.
        chance: gives numbers from 0 to 1.
    """

    base: float = 0.5
    cap: float = 8.0
    longest: float = 60.0
    chance: Callable[[], float] = random.random

    def pause(self, failures: int, told: float | None = None) -> float | None:
        """Seconds to wait after so many *failures* in a row; None where the server asks for too many.

        Args:
            failures: how many tries have failed; 1 after the first.
            told: seconds that the server asks for, if it does.
        """
        if told is not None:
            return told * (1 + _LATER_AT_MOST * self.chance()) if told <= self.longest else None
        return min(self.cap, self.base * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)) * self.chance()


def told_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer's headers ask a client to wait; None if they ask for nothing that can be understood.

    `retry-after` may be a number of seconds or a date, as HTTP has it. What is not in the future says nothing.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") / unit
        except ValueError:
            continue
        if not math.isnan(seconds):
            return seconds if seconds > 0 else None
    try:
        seconds = email.utils.parsedate_to_datetime(headers.get("retry-after") or "").timestamp() - time.time()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if seconds > 0 else None


def is_worth_another_try(error: Exception) -> bool:
    """Whether the same request can go well later; told from the exception's type, and never from its text.

    That is so without a connection or in time (`APIConnectionError`, `APITimeoutError`), and with 408, 409, 429 and 500
    and above, unless the server says `x-should-retry: false`. All other 4xx are the request's fault.
    """
    import openai  # noqa: PLC0415 - importing this module needs no SDK

    if not isinstance(error, openai.APIStatusError):
        return isinstance(error, openai.APIConnectionError)
    if error.response.headers.get("x-should-retry") == "false" or error.code in _NEVER:
        return False
    passing = (openai.RateLimitError, openai.InternalServerError, openai.ConflictError)
    return isinstance(error, passing) or error.status_code == 408


class Tries:
    """Counts the tries of one thing.

    Args:
        attempts: tries in a row, the first among them.
        back_off: how long to wait between them.
        deadline: seconds from now, after which no try begins.
    """

    def __init__(self, attempts: int, back_off: BackOff, deadline: float | None = None) -> None:
        self._attempts = attempts
        self._back_off = back_off
        self._failures = 0
        self._end = math.inf if deadline is None else time.monotonic() + deadline

    def begin_again(self) -> None:
        """Something went well; what failed before does not count any more."""
        self._failures = 0

    def pause(self, error: Exception) -> float | None:
        """Seconds to wait before the next try after this failure; None if there is to be none."""
        self._failures += 1
        if self._failures >= self._attempts or not is_worth_another_try(error):
            return None
        response = getattr(error, "response", None)
        told = told_pause(response.headers) if response is not None else None
        seconds = self._back_off.pause(self._failures, told)
        if seconds is None or time.monotonic() + seconds > self._end:
            return None
        log.info("trying again in %.1f s after %s: %s", seconds, type(error).__name__, error)
        return seconds


def call_with_retry(
    call: Callable[[], T],
    *,
    attempts: int = 5,
    deadline: float | None = None,
    back_off: BackOff | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """What *call* returns, tried again while that is worth it (`is_worth_another_try`).

    The SDK tries again by itself: make its client with `max_retries=0`, else each try here is up to three requests.
    A request that timed out may still be answered and paid for on the server, and then a further try is a second one.

    Args:
        call: makes the request, and raises what the SDK raises: `lambda: client.chat.completions.create(…)`.
        attempts: how often it is called at most.
        deadline: seconds after which it is not called again; a wait that would end later is not begun.
        back_off: how long to wait.
        sleep: waits.

    Raises:
        openai.APIError: what the last call raised, unchanged.
    """
    tries = Tries(attempts, back_off or BackOff(), deadline)
    while True:
        try:
            return call()
        except Exception as error:
            pause = tries.pause(error)
            if pause is None:
                raise
        sleep(pause)


async def async_call_with_retry(
    call: Callable[[], Awaitable[T]],
    *,
    attempts: int = 5,
    deadline: float | None = None,
    back_off: BackOff | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """`call_with_retry` for `AsyncOpenAI`: awaits what *call* returns, and *sleep*."""
    tries = Tries(attempts, back_off or BackOff(), deadline)
    while True:
        try:
            return await call()
        except Exception as error:
            pause = tries.pause(error)
            if pause is None:
                raise
        await sleep(pause)
