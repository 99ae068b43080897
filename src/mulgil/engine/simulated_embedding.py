"""A deterministic embedder without a model: `engine=simulated` with `embeddings_model` set.

Texts that share words lie close together, so a front end's search finds something. A
`/simulate {…}` at the end of an input scripts the request, faults included:

    /simulate {"delay": 0.2}
"""

import asyncio
import re
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mulgil.aside import Aside
from mulgil.engine.embedding import PreparedInputs, Vector, check_token_ids, in_order
from mulgil.engine.load import Load
from mulgil.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    InvalidFieldError,
    UnsupportedValueError,
)
from mulgil.schemas.embedding import EmbeddingRequest

DIMENSIONS = 384
VOCABULARY = 32_768

_DIRECTIVE = "/simulate "
_PIECE = re.compile(r"\S{1,8}")
_BEGIN, _END = 0, 1
_FEATURES = 4
_AT_ONCE = 64


class EmbeddingScript(BaseModel):
    """What one input does; what is not given is not done."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay: float = Field(default=0.0, ge=0, le=3_600)
    """Seconds until the vector is there."""
    fail: bool = False
    """Fail this request."""
    die: bool = False
    """The whole embedder dies."""


@dataclass(frozen=True, slots=True)
class _Work:
    inputs: list[tuple[list[int], EmbeddingScript]]
    dimensions: int


class SimulatedEmbedder:
    """Implements `Embedder`. A token is a word, or up to eight characters of a longer one.

    Vectors are feature hashes: each token adds to a few places that its id decides.

    Args:
        max_model_len: longest input in tokens.
    """

    def __init__(self, *, max_model_len: int = 8_192) -> None:
        self._max_model_len = max_model_len
        self._dead = asyncio.Event()
        self._unfinished = 0
        self._aside = Aside()

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def dead(self) -> bool:
        return self._dead.is_set()

    @property
    def progress(self) -> int | None:
        return None  # a request is too short to stall

    async def start(self) -> None:
        self._dead.clear()

    async def stop(self) -> None:
        self._dead.set()

    async def prepare(self, request: EmbeddingRequest) -> PreparedInputs:
        check_token_ids(request, VOCABULARY)
        if (request.dimensions or 0) > DIMENSIONS:
            raise UnsupportedValueError(
                f"This model's vectors have at most {DIMENSIONS} dimensions, not {request.dimensions}.",
                param="dimensions",
            )
        size = sum(len(entry) for entry in request.inputs)
        work = await self._aside.run(lambda: self._tokenised(request), size=size)
        return PreparedInputs(tuple(len(ids) for ids, _ in work), _Work(work, request.dimensions or DIMENSIONS))

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        ids = await self._aside.run(lambda: _tokens(text), size=len(text))
        return [_BEGIN, *ids, _END] if special else ids

    async def embed(self, prepared: PreparedInputs) -> list[Vector]:
        work = prepared.payload
        assert isinstance(work, _Work), "prepared by another embedder"

        async def one(_: int, item: tuple[list[int], EmbeddingScript]) -> Vector:
            ids, script = item
            await self._obey(script)
            return await self._aside.run(lambda: _vector(ids, work.dimensions), size=size)

        size = prepared.prompt_tokens * _FEATURES
        self._unfinished += 1
        try:
            return await in_order(one, work.inputs, at_once=_AT_ONCE)
        finally:
            self._unfinished -= 1

    async def check(self) -> None:
        if self.dead:
            raise EngineUnavailableError("The embedder died.")

    def load(self) -> Load:
        return Load(unfinished=self._unfinished)

    def _tokenised(self, request: EmbeddingRequest) -> list[tuple[list[int], EmbeddingScript]]:
        return [self._one_tokenised(entry, request.path(index)) for index, entry in enumerate(request.inputs)]

    def _one_tokenised(self, entry: str | list[int], path: str) -> tuple[list[int], EmbeddingScript]:
        ids = entry if isinstance(entry, list) else [_BEGIN, *_tokens(entry), _END]
        if len(ids) > self._max_model_len:
            raise ContextLengthError(limit=self._max_model_len, prompt_tokens=len(ids), param=path)
        return ids, EmbeddingScript() if isinstance(entry, list) else _script(entry, path)

    async def _obey(self, script: EmbeddingScript) -> None:
        if script.die:
            self._dead.set()
        try:
            async with asyncio.timeout(script.delay):
                await self._dead.wait()
        except TimeoutError:
            pass
        if self.dead:
            raise EngineUnavailableError("The embedder died.")
        if script.fail:
            raise EngineError("The embedder failed this request, as it was told to.")


def _script(text: str, path: str) -> EmbeddingScript:
    _, found, directive = text.rpartition(_DIRECTIVE)
    if not found or not directive.lstrip().startswith("{"):
        return EmbeddingScript()
    try:
        return EmbeddingScript.model_validate_json(directive)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InvalidFieldError(
            f"Invalid /simulate script: {where or 'JSON'}: {first['msg']}.", param=path, code="invalid_value"
        ) from None


def _tokens(text: str) -> list[int]:
    return [_END + 1 + zlib.crc32(found[0].encode()) % (VOCABULARY - _END - 1) for found in _PIECE.finditer(text)]


def _vector(ids: Iterable[int], dimensions: int) -> Vector:
    """The same for the same ids on every machine; of length 1. Its beginning, made longer, is a shorter one."""
    numbers = [0.0] * DIMENSIONS
    for token in ids:
        seed = token
        for _ in range(_FEATURES):
            # A linear congruential generator (Knuth's MMIX constants): only its high bits are any good.
            seed = (seed * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
            # What every text has would make all of them alike.
            weight = 0.01 if token <= _END else 1.0
            numbers[(seed >> 33) % DIMENSIONS] += weight if seed >> 63 else -weight
    shown = numbers[:dimensions]
    if not any(shown):
        shown[0] = 1.0
    length = sum(number * number for number in shown) ** 0.5
    return array("f", (number / length for number in shown))
