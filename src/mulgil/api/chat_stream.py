"""The events of a streamed chat: role chunks, deltas, finish chunks, and the usage if asked for."""

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import orjson

from mulgil.api.generations import public_id, told_logprobs, usage
from mulgil.api.sse import event
from mulgil.generation import Generation
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.slices import CallSlice, Slice

_CONTENT_SUFFIX = b'},"logprobs":null,"finish_reason":null}]}\n\n'


async def frames(
    generation: Generation, asked: ChatCompletionRequest, *, offset: int = 0, with_ids: bool = False
) -> AsyncGenerator[bytes]:
    """One chunk an event, as wire-exact as OpenAI's clients want them, to the last one before `[DONE]`.

    Args:
        generation: what is told.
        asked: what the client wants to be told of it.
        offset: how much of it the client has, as its timeline counts.
        with_ids: each event says how much the client has with it; only where there is a timeline.

    Raises:
        MulgilError: the generation failed; what it had made has been yielded.
    """
    chunks = _Chunks(generation, asked)
    if not offset:
        for index in range(len(generation.snapshot.choices)):
            yield chunks.chunk(index, {"role": "assistant", "content": ""})
    async for news in generation.follow(offset):
        for piece in news:
            if with_ids:
                yield b"id: %d\n" % (piece.offset or 0) + b"".join(chunks.deltas(piece))
            elif chunks.plain and piece.text and not (piece.reasoning or piece.calls):
                yield chunks.content(piece)
            else:
                for frame in chunks.deltas(piece):
                    yield frame
    for number, frame in enumerate(chunks.ending(), start=_length(generation) + 1):
        if number > offset:
            yield b"id: %d\n" % number + frame if with_ids else frame


def last_id(generation: Generation, asked: ChatCompletionRequest) -> int:
    """The id behind those of all chunks of a generation that has ended."""
    return _length(generation) + len(generation.snapshot.choices) + _tells_usage_at_the_end(asked) + 1


def _length(generation: Generation) -> int:
    return generation.timeline.length if generation.timeline else 0


def _tells_usage_at_the_end(asked: ChatCompletionRequest) -> bool:
    return asked.stream_options is not None and bool(asked.stream_options.include_usage)


def heartbeat(generation: Generation, asked: ChatCompletionRequest) -> bytes:
    """A chunk that says nothing."""
    return _Chunks(generation, asked).chunk(0, {})


class _Chunks:
    """Makes the chunks of one stream.

    Attributes:
        head: the fields that all chunks share.
        plain: chunks carry nothing that grows beside the text.
    """

    def __init__(self, generation: Generation, asked: ChatCompletionRequest) -> None:
        self._generation = generation
        self.head: dict[str, Any] = {
            "id": public_id(generation, "chatcmpl"),
            "object": "chat.completion.chunk",
            "created": generation.created,
            "model": generation.model,
            "system_fingerprint": generation.fingerprint,
            **({"service_tier": "default"} if asked.service_tier else {}),
        }
        self._tells_usage = asked.stream_options is not None and bool(asked.stream_options.continuous_usage_stats)
        self._tells_usage_at_the_end = _tells_usage_at_the_end(asked)
        self._tells_logprobs = bool(asked.logprobs)
        self.plain = not (self._tells_usage or self._tells_logprobs)
        # Only the text differs from one content chunk to the next, so the rest is encoded once.
        self._before = [
            self.chunk(index, {"content": ""}).removesuffix(b'""' + _CONTENT_SUFFIX)
            for index in range(len(generation.snapshot.choices))
        ]

    def ending(self) -> Iterator[bytes]:
        """A finish chunk for each choice, and the usage if asked for."""
        for index, choice in enumerate(self._generation.snapshot.choices):
            yield self.chunk(index, {}, finish_reason=choice.finish_reason)
        if self._tells_usage_at_the_end:
            yield event({**self.head, "choices": [], "usage": self.usage()})

    def content(self, piece: Slice) -> bytes:
        """The chunk of new text and nothing else."""
        return self._before[piece.index] + orjson.dumps(piece.text) + _CONTENT_SUFFIX

    def deltas(self, piece: Slice) -> Iterator[bytes]:
        """One chunk for each thing that grew, in the order in which a model makes them."""
        if piece.reasoning:
            yield self.chunk(piece.index, {"reasoning_content": piece.reasoning})
        if piece.text or piece.logprobs:
            logprobs = told_logprobs(piece.logprobs) if self._tells_logprobs else None
            yield self.chunk(piece.index, {"content": piece.text} if piece.text else {}, logprobs=logprobs)
        for call in piece.calls:
            yield self.chunk(piece.index, {"tool_calls": [_call_delta(call)]})

    def chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        """The event of one chunk."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        now = {"usage": self.usage()} if self._tells_usage else {}
        return event({**self.head, "choices": [choice], **now})

    def usage(self) -> dict[str, Any]:
        """The counts so far."""
        return usage(self._generation, self._generation.snapshot).model_dump()


def _call_delta(call: CallSlice) -> dict[str, Any]:
    """A key that has nothing new is left out: some clients choke on nulls, others add repeated names up."""
    if call.begun is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": call.begun.id,
        "type": "function",
        "function": {"name": call.begun.name, "arguments": call.arguments},
    }
