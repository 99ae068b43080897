"""A deterministic engine without a model: `--engine simulated`.

For front ends, load tests and fault tests. The answer depends on the prompt and the LoRA adapter alone,
time passes as set, and a `/simulate {…}` at the end of the last user message scripts one request, faults
included:

    /simulate {"tokens": 40, "gap": 0.05, "fail_at": 12}
"""

import asyncio
import codecs
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from mulgil.aside import Aside
from mulgil.engine.base import Prepared, Prompt, TextRequest, check_vocabulary, longest_answer
from mulgil.engine.load import UNBOUNDED, Capacity, Load
from mulgil.engine.lora import Adapter, check_unchanged
from mulgil.engine.simulated_answers import Script, answer
from mulgil.engine.simulated_tokens import VOCABULARY, encode, encode_message, token_bytes
from mulgil.engine.simulated_voice import Voice
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, StopCause
from mulgil.engine.truncation import fitted, room_for_answer
from mulgil.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    InvalidFieldError,
    ModelNotFoundError,
)
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.tokenize import TokenizeRequest

_DIRECTIVE = "/simulate "


@dataclass(frozen=True, slots=True)
class _Work:
    script: Script
    voices: tuple[Voice, ...]


class SimulatedEngine:
    """Implements `Engine`. One token is a word with the space before it.

    Args:
        max_model_len: context in tokens.
        default_max_tokens: length limit of an answer where the request sets none.
        ttft: seconds before the first token.
        gap: seconds between two tokens.
        capacity: what it says that it can do, and hold; it takes whatever it is given.
    """

    def __init__(
        self,
        *,
        max_model_len: int = 8_192,
        default_max_tokens: int = 4_096,
        ttft: float = 0.0,
        gap: float = 0.0,
        capacity: Capacity = UNBOUNDED,
    ) -> None:
        self._max_model_len = max_model_len
        self._default_max_tokens = default_max_tokens
        self._defaults = Script(ttft=ttft, gap=gap)
        self._dead = False
        self._made = 0
        self._capacity = capacity
        self._held = 0
        self._aborts: dict[str, asyncio.Event] = {}
        self._adapters: dict[str, Adapter] = {}
        self._aside = Aside()

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def dead(self) -> bool:
        return self._dead

    @property
    def progress(self) -> int | None:
        return self._made if self._aborts else None

    async def start(self) -> None:
        self._dead = False

    async def stop(self) -> None:
        self._die()

    async def load_adapter(self, adapter: Adapter) -> None:
        await self.check()
        await asyncio.to_thread(check_unchanged, adapter)
        self._adapters[adapter.name] = adapter

    async def unload_adapter(self, name: str) -> None:
        await self.check()
        self._adapters.pop(name, None)

    async def prepare(
        self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None, adapter: str | None = None
    ) -> Prepared:
        wanted = longest_answer(request, default_max_tokens, self._default_max_tokens)
        speaker = self._adapters.get(adapter) if adapter is not None else None
        if adapter is not None and speaker is None:
            raise ModelNotFoundError(adapter)

        async def render(asked: TextRequest, free: int) -> Prepared:
            size = asked.weight * asked.choices
            return await self._aside.run(lambda: self._prepared(asked, wanted, free, speaker), size=size)

        if not isinstance(request, ChatCompletionRequest):
            return await render(request, 1)
        room = room_for_answer(request, wanted, self._max_model_len)
        prepared, dropped = await fitted(request, room, render)
        return replace(prepared, dropped_messages=dropped)

    def _prepared(self, request: TextRequest, wanted: int, free: int, adapter: Adapter | None) -> Prepared:
        _check_token_ids(request)
        script = self._script(request)
        if isinstance(request, ChatCompletionRequest):
            param, tokenised = "messages", [_encoded(request)]
        else:
            param, tokenised = "prompt", [_ids_of(prompt) for prompt in request.prompts]
        prompts, voices = [], []
        for ids in tokenised:
            room = self._max_model_len - len(ids)
            if room < free:
                raise ContextLengthError(limit=self._max_model_len, prompt_tokens=len(ids), param=param)
            prompt = Prompt(ids, min(wanted, room))
            prompts.append(prompt)
            answers = [answer(script, request, ids, index, adapter) for index in range(request.choices)]
            voices += [Voice(one, request, prompt) for one in answers]
        return Prepared(
            id=f"sim-{secrets.token_hex(12)}",
            prompts=tuple(prompts),
            choices=request.choices,
            payload=_Work(script, tuple(voices)),
            adapter=adapter,
        )

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        chat, prompt = request.chat, request.prompt or ""
        if chat is None:
            return await self._aside.run(lambda: encode(prompt), size=len(prompt))
        return await self._aside.run(lambda: _encoded(chat), size=chat.weight)

    async def detokenize(self, token_ids: Sequence[int]) -> list[str]:
        check_vocabulary(token_ids, VOCABULARY, param="tokens")
        return await self._aside.run(lambda: _texts_of(token_ids), size=len(token_ids))

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        work = prepared.payload
        assert isinstance(work, _Work), "prepared by another engine"
        aborted = self._aborts[prepared.id] = asyncio.Event()
        held = prepared.prompt_tokens
        self._held += held
        try:
            self._obey(work.script, 0)
            voices, longest = work.voices, max(prompt.max_tokens for prompt in prepared.prompts)
            yield Snapshot((ChoiceSnapshot(),) * len(voices))
            for position in range(longest):
                await self._wait(work.script, position, aborted)
                if self._dead:
                    raise EngineUnavailableError("The engine died.")
                if aborted.is_set():
                    break
                self._obey(work.script, position)
                self._made += 1
                held += len(voices)
                self._held += len(voices)
                for voice in voices:
                    voice.speak()
                if all(voice.finish_reason for voice in voices):
                    break
                yield _said(voices)
            yield _said(voices, last="abort")
        finally:
            self._held -= held
            del self._aborts[prepared.id]

    async def abort(self, request_id: str) -> None:
        if event := self._aborts.get(request_id):
            event.set()

    async def check(self) -> None:
        if self._dead:
            raise EngineUnavailableError("The engine died.")

    def load(self) -> Load:
        kv_tokens = self._capacity.kv_tokens
        usage = self._held / kv_tokens if kv_tokens else 0.0
        return Load(unfinished=len(self._aborts), kv_usage=usage, capacity=self._capacity)

    def _script(self, request: TextRequest) -> Script:
        if isinstance(request, ChatCompletionRequest):
            last = request.messages[-1]
            text, param = (
                (last.text or "") if last.role == "user" else "",
                f"messages[{len(request.messages) - 1}].content",
            )
        else:
            text, param = request.prompts[0] if isinstance(request.prompts[0], str) else "", "prompt"
        _, found, directive = text.rpartition(_DIRECTIVE)
        if not found or not directive.lstrip().startswith("{"):
            return self._defaults
        try:
            asked = Script.model_validate_json(directive)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"])[:64]
            raise InvalidFieldError(
                f"Invalid /simulate script: {where or 'JSON'}: {first['msg']}.",
                param=param,
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


def _said(voices: tuple[Voice, ...], *, last: StopCause | None = None) -> Snapshot:
    return Snapshot(tuple(voice.snapshot(last) for voice in voices))


def _encoded(request: ChatCompletionRequest) -> list[int]:
    return [token for message in request.messages for token in encode_message(message.text or "")]


def _texts_of(token_ids: Sequence[int]) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = [decoder.decode(token_bytes(token)) for token in token_ids]
    return [*texts[:-1], texts[-1] + decoder.decode(b"", final=True)] if texts else []


def _ids_of(prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        ids = encode(prompt)
        if ids:
            return ids
        raise InvalidFieldError(
            "Invalid 'prompt': a prompt has at least one token.", param="prompt", code="invalid_value"
        )
    check_vocabulary(prompt, VOCABULARY, param="prompt")
    return prompt


def _check_token_ids(request: TextRequest) -> None:
    """Refuse token ids that the vocabulary does not have."""
    check_vocabulary([int(token) for token in request.logit_bias or ()], VOCABULARY, param="logit_bias")
    check_vocabulary(request.stop_token_ids or (), VOCABULARY, param="stop_token_ids")
