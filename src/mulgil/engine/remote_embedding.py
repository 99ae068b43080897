"""Embeddings made by another server: keys and budgets are ours, vectors are its own.

Tokens are counted before anything is admitted, so that server must offer a tokenize endpoint too:
`/v1/tokenize` as Mulgil has it, or `/tokenize` as vLLM has it.
"""

import asyncio
import base64
import logging
import sys
from array import array
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import orjson

from mulgil.engine.embedding import PreparedInputs, Vector, in_order
from mulgil.engine.envelope import retry_after, told
from mulgil.engine.load import Load
from mulgil.errors import (
    BadRequestError,
    ContextLengthError,
    EngineUnavailableError,
    InvalidFieldError,
    MulgilError,
    OverloadedError,
    RequestTooLargeError,
)
from mulgil.schemas.embedding import EmbeddingRequest

log = logging.getLogger(__name__)

_COUNTED_AT_ONCE = 16
_CHECK_TIMEOUT = 5.0
_NO_SUCH_ROUTE = (404, 405)


class RemoteEmbedder:
    """Implements `Embedder` on a server with OpenAI's `/embeddings`.

    Args:
        url: base URL, as `http://host:8000/v1`.
        model: a name that the server knows; it is asked about when nobody else asks.
        api_key: sent as a bearer token.
        timeout: seconds that one call may take.
    """

    def __init__(self, url: str, *, model: str, api_key: str | None = None, timeout: float = 30.0) -> None:
        self._base = url.rstrip("/")
        self._model = model
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None
        self._tokenize_url: str | None = None
        self._unfinished = 0
        self._doubted = False

    @property
    def max_model_len(self) -> None:
        return None

    @property
    def dead(self) -> bool:
        return False

    @property
    def progress(self) -> int | None:
        return None  # a request is too short to stall

    async def start(self) -> None:
        self._client = httpx2.AsyncClient(
            headers=self._headers,
            timeout=self._timeout,
            follow_redirects=False,  # a redirect would take the texts, and the key, elsewhere
            trust_env=False,
        )

    async def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def prepare(self, request: EmbeddingRequest) -> PreparedInputs:
        async def count(index: int, entry: str | list[int]) -> int:
            path = request.path(index)
            if not isinstance(entry, str):
                return len(entry)
            try:
                return await self._count(request.model, entry, path)
            except BadRequestError as error:
                error.param = path
                raise

        async with self._working():
            return PreparedInputs(tuple(await in_order(count, request.inputs, at_once=_COUNTED_AT_ONCE)), request)

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        async with self._working():
            answer = await self._tokenized({"model": self._model, "prompt": text, "add_special_tokens": special})
        tokens = answer.get("tokens")
        if not (isinstance(tokens, list) and all(isinstance(token, int) for token in tokens)):
            raise _unreadable()
        return tokens

    async def embed(self, prepared: PreparedInputs) -> list[Vector]:
        request = prepared.payload
        assert isinstance(request, EmbeddingRequest), "prepared by another embedder"
        body = request.model_dump(exclude_none=True) | {"encoding_format": "base64"}
        async with self._working():
            answer = await self._call("POST", f"{self._base}/embeddings", body, prepared.trace_headers)
        try:
            entries = sorted(answer["data"], key=lambda entry: int(entry["index"]))
            vectors = [_vector(entry["embedding"]) for entry in entries]
            used = answer["usage"]["prompt_tokens"]
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable() from error
        if [entry["index"] for entry in entries] != list(range(len(prepared.counts))):
            raise _unreadable()
        if used != prepared.prompt_tokens and not self._doubted:
            self._doubted = True
            log.warning(
                "the embeddings server counted %s tokens after its tokenize endpoint had counted %d; said once",
                used,
                prepared.prompt_tokens,
            )
        return vectors

    async def check(self) -> None:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT):
                if self._tokenize_url is None:
                    await self._count(self._model, "a", "input")
                else:
                    await self._call("GET", f"{self._base}/models")
        except TimeoutError:
            raise EngineUnavailableError("The embeddings server did not answer in time.") from None

    def load(self) -> Load:
        return Load(unfinished=self._unfinished)

    @asynccontextmanager
    async def _working(self) -> AsyncGenerator[None]:
        self._unfinished += 1
        try:
            yield
        finally:
            self._unfinished -= 1

    async def _count(self, model: str, text: str, path: str) -> int:
        answer = await self._tokenized({"model": model, "prompt": text})
        tokens, limit = answer.get("tokens"), answer.get("max_model_len")
        count = answer.get("count", len(tokens) if isinstance(tokens, list) else None)
        if not isinstance(count, int):
            raise _unreadable()
        if isinstance(limit, int) and count > limit:
            raise ContextLengthError(limit=limit, prompt_tokens=count, param=path)
        return count

    async def _tokenized(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._tokenize_url is not None:
            return await self._call("POST", self._tokenize_url, body)
        for url in (f"{self._base}/tokenize", f"{self._base.removesuffix('/v1')}/tokenize"):
            try:
                answer = await self._call("POST", url, body)
            except _NoSuchRouteError:
                continue
            self._tokenize_url = url
            return answer
        raise EngineUnavailableError(
            "The embeddings server has no tokenize endpoint for this model, so tokens cannot be counted.",
            retry_after=30.0,
        )

    async def _call(
        self, method: str, url: str, body: dict[str, Any] | None = None, trace: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        if self._client is None:
            raise EngineUnavailableError("The server is shutting down.")
        content = None if body is None else orjson.dumps(body)
        headers = {**({"content-type": "application/json"} if content else {}), **(trace or {})}
        try:
            async with asyncio.timeout(self._timeout):
                reply = await self._client.request(method, url, content=content, headers=headers)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise EngineUnavailableError("The embeddings server did not answer in time.") from error
        except (httpx2.HTTPError, RuntimeError) as error:
            raise EngineUnavailableError("The embeddings server cannot be reached.") from error
        if not reply.is_success:
            raise _refusal(reply)
        try:
            answer = orjson.loads(reply.content)
        except orjson.JSONDecodeError as error:
            raise _unreadable() from error
        if not isinstance(answer, dict):
            raise _unreadable()
        return answer


class _NoSuchRouteError(EngineUnavailableError):
    """The server does not have what was asked for; nothing a client could mend."""


def _refusal(reply: httpx2.Response) -> MulgilError:
    """Of whom it is the fault: a client's request passes as it is; what the operator must mend is a 503."""
    status = reply.status_code
    refusal = told(reply.content)
    message = refusal.message or f"The embeddings server refused the request ({status})."
    param, code = refusal.param, refusal.code
    if status == 422:
        return InvalidFieldError(message, param=param or "input", code=code or "invalid_value")
    if status == 413:
        return RequestTooLargeError(message)
    if status == 400:
        refused = BadRequestError(message, param=param)
        refused.code = code
        return refused
    if status in (429, 503):
        return OverloadedError("The embeddings server is busy.", retry_after=retry_after(reply.headers))
    log.error("the embeddings server answered %d to %s %s", status, reply.request.method, reply.request.url.path)
    kind = _NoSuchRouteError if status in _NO_SUCH_ROUTE else EngineUnavailableError
    return kind(f"The embeddings server answered {status}.", retry_after=5.0)


def _vector(sent: Any) -> Vector:
    if not isinstance(sent, str):
        return array("f", sent)
    vector = array("f", base64.b64decode(sent, validate=True))
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def _unreadable() -> EngineUnavailableError:
    return EngineUnavailableError("The embeddings server sent an answer that cannot be read.", retry_after=5.0)
