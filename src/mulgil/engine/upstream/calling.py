"""HTTP to an upstream: one client for each, bounded replies, and its failures as errors of ours."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx2
import orjson

from mulgil.engine.envelope import Told, retry_after, told
from mulgil.errors import (
    BadRequestError,
    ContextLengthError,
    EngineUnavailableError,
    InvalidFieldError,
    RequestTooLargeError,
)
from mulgil.upstreams import UpstreamOptions

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 256
_LARGEST_REFUSAL = 64 * 1024
_LARGEST_REPLY = 64 * 1024 * 1024
_LONGEST_MESSAGE = 500
_SAID_TOO_LONG = re.compile(r"context.length|context window|too many tokens", re.IGNORECASE)
_LIMIT = re.compile(r"(?:limit of|length is|context length of)\s+(\d{1,9})")
_COUNT = re.compile(r"(?:resulted in|contains|requested)\s+(?:at least\s+)?(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Call:
    """What an upstream is asked.

    Attributes:
        path: below the base URL.
        body: JSON.
        param: the field of the client's request that has the prompt.
        trace: headers by which it may add to the trace of the request.
        may_be_absent: that it does not have the route is worth telling apart.
    """

    path: str
    body: bytes
    param: str
    trace: Mapping[str, str] = field(default_factory=dict)
    may_be_absent: bool = False


class Caller:
    """Calls one upstream. Nothing of a client's request has a part in where a call goes.

    Args:
        name: of the upstream in `mulgil.toml`; only the log tells it.
        options: of the upstream.
    """

    def __init__(self, name: str, options: UpstreamOptions) -> None:
        self._name = name
        self._options = options
        self._client = httpx2.AsyncClient(
            headers={
                "accept-encoding": "identity",  # whatever is unpacked may be a thousand times as large
                # Another Mulgil passes what it is asked so on to nobody, so that no request goes round in circles.
                "x-mulgil-fallback": "1",
                **({"authorization": f"Bearer {options.key.get_secret_value()}"} if options.key else {}),
            },
            timeout=httpx2.Timeout(None, connect=options.connect_timeout, pool=options.connect_timeout),
            limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS),
            follow_redirects=False,  # a redirect would take the texts, and the key, elsewhere
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections; calls that come later fail."""
        await self._client.aclose()

    @asynccontextmanager
    async def events(self, call: Call) -> AsyncGenerator[httpx2.Response]:
        """The answer to *call*, an event stream that is not read yet. Leaving closes the connection.

        Raises:
            MulgilError: there is none; see `_refuse`.
        """
        async with self._post(self._options.url, call) as reply:
            kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "text/event-stream":
                raise self._unreadable(f"content type {kind[:64]!r}")
            yield reply

    async def asked(self, call: Call, *, at_root: bool = False) -> dict[str, Any]:
        """The JSON object that answers *call*, within the time of a silence.

        Args:
            call: what is asked.
            at_root: the path is below the base URL without its `/v1`.

        Raises:
            NoSuchRouteError: there is nothing there.
            MulgilError: it was refused; see `_refuse`.
        """
        base = self._options.url
        base = base.removesuffix("/v1") if at_root else base
        try:
            async with asyncio.timeout(self._options.timeout), self._post(base, call) as reply:
                content = await _read(reply, _LARGEST_REPLY)
        except TimeoutError:
            raise self._unavailable("silent for too long") from None
        try:
            answer = orjson.loads(content)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise self._unreadable("no JSON object")
        return answer

    def _unavailable(self, why: str, *, wait: float = 1.0) -> EngineUnavailableError:
        log.warning("the upstream %s cannot answer: %s", self._name, why)
        return EngineUnavailableError("The server that answers in place of the engine cannot answer.", retry_after=wait)

    def _unreadable(self, why: str) -> EngineUnavailableError:
        return self._unavailable(f"its answer cannot be read ({why})", wait=5.0)

    @asynccontextmanager
    async def _post(self, base: str, call: Call) -> AsyncGenerator[httpx2.Response]:
        headers = {"content-type": "application/json", **call.trace}
        request = self._client.build_request("POST", base + call.path, content=call.body, headers=headers)
        try:
            reply = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, RuntimeError) as error:
            # Its own words may have the address in them.
            raise self._unavailable(type(error).__name__) from None
        try:
            if reply.status_code != 200:
                await self._refuse(reply, call)
            if reply.headers.get("content-encoding", "identity") != "identity":
                raise self._unreadable("it is packed")
            try:
                yield reply
            except httpx2.HTTPError as error:
                raise self._unavailable(type(error).__name__) from None
        finally:
            await reply.aclose()

    async def _refuse(self, reply: httpx2.Response, call: Call) -> NoReturn:
        """What the client can mend passes as it is; what the operator must mend is a 503."""
        status = reply.status_code
        says = told(await self._said(reply))
        absent = status in (404, 405, 501) and says.code != "model_not_found"
        if call.may_be_absent and absent:
            raise NoSuchRouteError
        if status == 400 and (says.code == "context_length_exceeded" or _SAID_TOO_LONG.search(says.message)):
            raise _too_long(says, call.param)
        if status in (400, 413, 422):
            raise self._refusal(status, says, call)
        raise self._unavailable(f"status {status}", wait=retry_after(reply.headers) if status in (429, 503) else 5.0)

    async def _said(self, reply: httpx2.Response) -> bytes:
        if reply.headers.get("content-encoding", "identity") != "identity":
            return b""
        try:
            async with asyncio.timeout(self._options.timeout):
                return await _read(reply, _LARGEST_REFUSAL)
        except (EngineUnavailableError, TimeoutError, httpx2.HTTPError):
            return b""

    def _refusal(
        self, status: int, says: Told, call: Call
    ) -> BadRequestError | InvalidFieldError | RequestTooLargeError:
        message = f"The server that answers in place of the engine refuses the request: {self._shown(says.message)}"
        if status == 413:
            return RequestTooLargeError(message)
        if status == 422:
            return InvalidFieldError(message, param=says.param or call.param, code=says.code or "invalid_value")
        refused = BadRequestError(message, param=says.param)
        refused.code = says.code
        return refused

    def _shown(self, message: str) -> str:
        """*message* without what is nobody's business."""
        key, host = self._options.key, httpx2.URL(self._options.url).host
        secrets = [host, *([key.get_secret_value()] if key else [])]
        if not message or any(secret in message for secret in secrets):
            return "it does not say why."
        return message[:_LONGEST_MESSAGE]


class NoSuchRouteError(Exception):
    """The server does not have what was asked for; nobody is told, since something else is done then."""


async def _read(reply: httpx2.Response, most: int) -> bytes:
    content = bytearray()
    async for piece in reply.aiter_raw():
        content += piece
        if len(content) > most:
            raise EngineUnavailableError("The server that answers in place of the engine says too much.")
    return bytes(content)


def _too_long(says: Told, param: str) -> ContextLengthError:
    limit, count = _LIMIT.search(says.message), _COUNT.search(says.message)
    return ContextLengthError(
        limit=int(limit[1]) if limit else None,
        prompt_tokens=int(count[1]) if count else None,
        param=param,
    )
