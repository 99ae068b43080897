"""Implements `Answerer` on a server elsewhere: what it answers becomes snapshots, as an engine's would be."""

import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

import httpx2

from mulgil.engine.base import Prepared, Prompt, TextRequest, longest_answer
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.engine.truncation import fitted, room_for_answer
from mulgil.engine.upstream.body import asked_of, param_of
from mulgil.engine.upstream.calling import Call, Caller
from mulgil.engine.upstream.counting import PromptCounter
from mulgil.engine.upstream.folding import Fold
from mulgil.engine.upstream.reading import Reading
from mulgil.errors import ContextLengthError, EngineUnavailableError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.upstreams import UpstreamOptions

log = logging.getLogger(__name__)

_BYTES_OF_ITSELF = 1024 * 1024
_BYTES_FOR_EACH_TOKEN = 8 * 1024  # of the answer, with twenty likely tokens and their bytes
_EVENTS_OF_ITSELF = 4_096
_EVENTS_FOR_EACH_TOKEN = 16


class Upstream:
    """Implements `Answerer` on a server that speaks OpenAI's API. It opens no connection before it is asked.

    Args:
        name: in `mulgil.toml`; the log tells it, and nobody else.
        options: which server, and how it is asked.
        default_max_tokens: length limit of an answer where neither the request nor its tier sets one.
    """

    def __init__(self, name: str, options: UpstreamOptions, *, default_max_tokens: int = 4_096) -> None:
        self.name = name
        self._options = options
        self._default_max_tokens = default_max_tokens
        self._caller = Caller(name, options)
        self._counter = PromptCounter(self._caller, options)
        self._running: dict[str, Reading] = {}
        self._doubted = False

    @property
    def running(self) -> int:
        """Answers under way."""
        return len(self._running)

    async def prepare(self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None) -> Prepared:
        """As `Answerer.prepare`, with the upstream's own count of tokens, or a bound where it has no tokenize endpoint.

        The *tenant* stays here: to the upstream all requests are those of one client.

        Raises:
            EngineUnavailableError: it cannot be asked.
            MulgilError: as `Answerer.prepare`.
        """
        wanted = longest_answer(request, default_max_tokens, self._default_max_tokens)
        if not isinstance(request, ChatCompletionRequest):
            return await self._counted(request, wanted, 1)
        if request.truncation == "auto" and self._counter.context is None:
            await self._counter.learn(request.model)

        async def render(asked: ChatCompletionRequest, free: int) -> Prepared:
            return await self._counted(asked, wanted, free)

        room = room_for_answer(request, wanted, self._counter.context or 0)
        prepared, dropped = await fitted(request, room, render)
        return replace(prepared, dropped_messages=dropped)

    async def _counted(self, request: TextRequest, wanted: int, free: int) -> Prepared:
        counts = await self._counter.count(request)
        longest, context = max(counts), self._counter.context
        if context is not None:
            if context - longest < free:
                raise ContextLengthError(limit=context, prompt_tokens=longest, param=param_of(request))
            wanted = min(wanted, context - longest)
        return Prepared(
            id=f"up-{secrets.token_hex(12)}",
            prompts=tuple(Prompt(range(count), wanted) for count in counts),
            choices=request.choices,
            payload=request,
        )

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        """As `Answerer.generate`. The first snapshot comes when the upstream has begun an event stream.

        Raises:
            EngineUnavailableError: it cannot be reached, or fails as no client can mend; nothing was yielded.
            ContextLengthError: it says that the request does not fit; nothing was yielded.
            MulgilError: it refuses the request; nothing was yielded.
            EngineError: its answer broke off, or cannot be read; snapshots were yielded.
        """
        request = prepared.payload
        assert isinstance(request, TextRequest), "prepared by an engine"
        reading = self._running[prepared.id] = Reading(
            silence=self._options.timeout,
            most_bytes=_BYTES_OF_ITSELF + _BYTES_FOR_EACH_TOKEN * _tokens_told(request, prepared),
            most_events=_EVENTS_OF_ITSELF + _EVENTS_FOR_EACH_TOKEN * _tokens_told(request, prepared),
        )
        fold = Fold(request, prepared)
        try:
            async with AsyncExitStack() as stack:
                response = await self._begun(prepared, request, reading, stack)
                if response is not None:
                    yield Snapshot((ChoiceSnapshot(),) * prepared.width)
                    chunks = await stack.enter_async_context(aclosing(reading.chunks(response)))
                    async for some in chunks:
                        yield fold.take(some)
                last = fold.aborted() if reading.aborted else fold.ended()
            self._compare(fold.prompt_tokens, prepared)
            yield last
        finally:
            del self._running[prepared.id]

    async def abort(self, request_id: str) -> None:
        """As `Answerer.abort`; the connection is closed at once, which ends the request there."""
        if reading := self._running.get(request_id):
            await reading.abort()

    async def close(self) -> None:
        """Close its connections. To be called once, when nothing runs any more."""
        await self._caller.close()

    async def _begun(
        self, prepared: Prepared, request: TextRequest, reading: Reading, stack: AsyncExitStack
    ) -> httpx2.Response | None:
        """Its answer, which is closed with *stack*; None where it was aborted before."""
        path = "/chat/completions" if isinstance(request, ChatCompletionRequest) else "/completions"
        body = asked_of(
            request,
            self._options.model,
            max_tokens=prepared.prompts[0].max_tokens,
            counts=self._counter.exact and prepared.width == 1,
        )
        try:
            async with reading.waiting():
                call = Call(path, body, param_of(request), trace=prepared.trace_headers or {})
                return await stack.enter_async_context(self._caller.events(call))
        except TimeoutError:
            if reading.aborted:
                return None
            log.warning("the upstream %s cannot answer: silent for too long", self.name)
            raise EngineUnavailableError("The server that answers in place of the engine did not answer.") from None

    def _compare(self, told: int | None, prepared: Prepared) -> None:
        if told is None or self._doubted or not self._counter.exact or told == prepared.prompt_tokens:
            return
        self._doubted = True
        log.warning(
            "the upstream %s counted %d prompt tokens after its tokenize endpoint had counted %d; said once",
            self.name,
            told,
            prepared.prompt_tokens,
        )


def _tokens_told(request: TextRequest, prepared: Prepared) -> int:
    """The most tokens that its answer tells of: with `echo` those of the prompt, too."""
    echoed = prepared.prompt_tokens * prepared.choices if getattr(request, "echo", None) else 0
    return prepared.most_output_tokens + echoed
