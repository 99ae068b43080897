"""A deterministic engine without a model: `--engine simulated`.

For front ends, load tests and fault tests. The answer depends on the prompt alone, time passes as
set, and a `/simulate {…}` at the end of the last user message scripts one request, faults included:

    /simulate {"tokens": 40, "gap": 0.05, "fail_at": 12}
"""

import asyncio
import codecs
import hashlib
import re
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mulgil.engine.base import ChoiceSnapshot, Load, Prepared, Snapshot, StopCause
from mulgil.errors import ContextLengthError, EngineError, EngineUnavailableError, InvalidFieldError
from mulgil.schemas.chat import ChatCompletionRequest

_DIRECTIVE = "/simulate "
_TEXT = (
    "water flows where the ground allows it and a good channel only shows the way "
    "물은 길을 따라 흐르고 stone turns it sand slows it 좋은 물길은 막지 않고 이끈다 "
    "rain fills the river 🌊 the river reaches the sea 바다에 닿는다 💧"
)
_WORDS = tuple(_TEXT.split())
_FORMATTING_TOKENS = 4


class Script(BaseModel):
    """What one request does; what is not given is the engine's default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int | None = Field(default=None, ge=0, le=20_000)
    """Length of the answer; without it 8 to 64 by the prompt. Reaching it ends with `finish`."""
    text: str | None = None
    """The answer, word for word, instead of made-up words."""
    ttft: float | None = Field(default=None, ge=0, le=3_600)
    """Seconds before the first token."""
    gap: float | None = Field(default=None, ge=0, le=3_600)
    """Seconds between tokens."""
    finish: StopCause = "stop"
    """The finish reason."""
    fail_at: int | None = Field(default=None, ge=0)
    """Fail this request instead of making this token; 0 refuses it before it is accepted."""
    hang_at: int | None = Field(default=None, ge=0)
    """Make no token from this one on, until aborted."""
    die_at: int | None = Field(default=None, ge=0)
    """The whole engine dies instead of making this token."""
    split_characters: bool = False
    """Every token is one byte of UTF-8, so that most tokens of most scripts are part of a character."""


@dataclass(frozen=True, slots=True)
class _Work:
    script: Script
    answers: tuple[tuple[bytes, ...], ...]


class SimulatedEngine:
    """Implements `Engine`. One token is a word with the space before it.

    Args:
        max_model_len: context in tokens.
        default_max_tokens: length limit of an answer where the request sets none.
        ttft: seconds before the first token.
        gap: seconds between two tokens.
    """

    def __init__(
        self, *, max_model_len: int = 8_192, default_max_tokens: int = 4_096, ttft: float = 0.0, gap: float = 0.0
    ) -> None:
        self._max_model_len = max_model_len
        self._default_max_tokens = default_max_tokens
        self._defaults = Script(ttft=ttft, gap=gap)
        self._dead = False
        self._aborts: dict[str, asyncio.Event] = {}

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def dead(self) -> bool:
        return self._dead

    async def start(self) -> None:
        self._dead = False

    async def stop(self) -> None:
        self._die()

    async def prepare(
        self, request: ChatCompletionRequest, *, tenant: str, default_max_tokens: int | None = None
    ) -> Prepared:
        script = self._script(request)
        ids = [token for message in request.messages for token in _tokenise(message.role, message.text or "")]
        room = self._max_model_len - len(ids)
        if room < 1:
            raise ContextLengthError(limit=self._max_model_len, prompt_tokens=len(ids))
        answers = tuple(tuple(_pieces(script, ids, salt=f"{request.seed}/{index}")) for index in range(request.choices))
        return Prepared(
            id=f"sim-{secrets.token_hex(12)}",
            prompt_token_ids=ids,
            max_tokens=min(request.output_tokens or default_max_tokens or self._default_max_tokens, room),
            choices=request.choices,
            payload=_Work(script, tuple(_cut(answer, request.stop or ()) for answer in answers)),
        )

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        work = prepared.payload
        assert isinstance(work, _Work), "prepared by another engine"
        aborted = self._aborts[prepared.id] = asyncio.Event()
        try:
            self._obey(work.script, 0)
            voices = [_Voice(answer, work.script.finish) for answer in work.answers]
            yield _said(voices)
            for position in range(prepared.max_tokens):
                await self._wait(work.script, position, aborted)
                if self._dead:
                    raise EngineUnavailableError("The engine died.")
                if aborted.is_set():
                    break
                self._obey(work.script, position)
                for voice in voices:
                    voice.speak()
                if all(voice.finish_reason for voice in voices):
                    break
                if position + 1 < prepared.max_tokens:
                    yield _said(voices)
            yield _said(voices, last="abort" if aborted.is_set() else "length")
        finally:
            del self._aborts[prepared.id]

    async def abort(self, request_id: str) -> None:
        if event := self._aborts.get(request_id):
            event.set()

    async def check(self) -> None:
        if self._dead:
            raise EngineUnavailableError("The engine died.")

    def load(self) -> Load:
        return Load(unfinished=len(self._aborts))

    def _script(self, request: ChatCompletionRequest) -> Script:
        last = request.messages[-1]
        _, found, directive = (last.text or "").rpartition(_DIRECTIVE) if last.role == "user" else ("", "", "")
        if not found or not directive.lstrip().startswith("{"):
            return self._defaults
        try:
            asked = Script.model_validate_json(directive)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise InvalidFieldError(
                f"Invalid /simulate script: {where or 'JSON'}: {first['msg']}.",
                param=f"messages[{len(request.messages) - 1}].content",
                code="invalid_value",
            ) from None
        return asked.model_copy(
            update={
                "ttft": self._defaults.ttft if asked.ttft is None else asked.ttft,
                "gap": self._defaults.gap if asked.gap is None else asked.gap,
            }
        )

    def _obey(self, script: Script, position: int) -> None:
        if position == script.fail_at:
            raise EngineError("The engine failed this request, as it was told to.")
        if position == script.die_at:
            self._die()
            raise EngineUnavailableError("The engine died, as it was told to.")

    def _die(self) -> None:
        self._dead = True
        for event in self._aborts.values():
            event.set()

    async def _wait(self, script: Script, position: int, aborted: asyncio.Event) -> None:
        if script.hang_at is not None and position >= script.hang_at:
            await aborted.wait()
            return
        seconds = (script.gap if position else script.ttft) or 0.0
        if not seconds:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await aborted.wait()
        except TimeoutError:
            pass


class _Voice:
    """One choice while it is made."""

    def __init__(self, pieces: tuple[bytes, ...], finish: StopCause) -> None:
        self._pieces = pieces
        self._finish = finish
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self.text = ""
        self.tokens = 0
        self.finish_reason: StopCause | None = None

    def speak(self) -> None:
        """Make one token, unless all is said. An empty answer is one end-of-sequence token."""
        if self.finish_reason is None:
            if self.tokens < len(self._pieces):
                self.text += self._decoder.decode(self._pieces[self.tokens])
            self.tokens += 1
            if self.tokens >= len(self._pieces):
                self.finish_reason = self._finish


def _said(voices: list[_Voice], *, last: StopCause | None = None) -> Snapshot:
    return Snapshot(tuple(ChoiceSnapshot(v.text, v.tokens, v.finish_reason or last) for v in voices))


def _tokenise(role: str, text: str) -> list[int]:
    """A few tokens of formatting for each message, then one for each word and each run of blanks."""
    pieces = [role, *([""] * (_FORMATTING_TOKENS - 1)), *re.findall(r"\s+|\S{1,8}", text)]
    return [int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=2).digest()) for piece in pieces]


def _pieces(script: Script, prompt: list[int], *, salt: str) -> list[bytes]:
    text = script.text if script.text is not None else _made_up(script, prompt, salt)
    if script.split_characters:
        return [bytes([byte]) for byte in text.encode()]
    words = [piece.encode() for piece in re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)]
    return words if script.tokens is None else words[: script.tokens]


def _made_up(script: Script, prompt: list[int], salt: str) -> str:
    seed = int.from_bytes(hashlib.blake2b(f"{prompt}{salt}".encode(), digest_size=8).digest())
    count = script.tokens if script.tokens is not None else 8 + seed % 57
    chosen = []
    for _ in range(count):
        # A linear congruential generator (Knuth's MMIX constants): the same words on every machine.
        seed = (seed * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        chosen.append(_WORDS[(seed >> 33) % len(_WORDS)])
    return " ".join(chosen)


def _cut(answer: tuple[bytes, ...], stops: list[str] | tuple[str, ...]) -> tuple[bytes, ...]:
    """The answer up to the first stop sequence; the tokens made for it are kept, its text is not."""
    text = b"".join(answer).decode()
    ends = [found for stop in stops if (found := text.find(stop)) >= 0]
    if not ends:
        return answer
    room = len(text[: min(ends)].encode())
    kept: list[bytes] = []
    for piece in answer:
        kept.append(piece[:room])
        room -= len(kept[-1])
        if room == 0:
            break
    return tuple(kept)
