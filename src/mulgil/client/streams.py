"""Streamed chats that outlive broken lines: exact on Mulgil, as good as can be elsewhere."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mulgil.client.answer import CONTINUE, Answer
from mulgil.client.lines import async_chunks_of, chunks_of
from mulgil.client.retrying import BackOff, Tries

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI
    from openai.types.chat import ChatCompletionChunk


class _Read:
    """What both kinds of streams tell."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def text(self) -> str:
        """The text of the first choice, as far as it has come."""
        return self._answer.text

    @property
    def exact(self) -> bool:
        """It is one answer without a seam."""
        return not self._answer.seams

    @property
    def seams(self) -> tuple[int, ...]:
        """Where in `text` the rest was asked for anew, and may overlap or leave something out."""
        return tuple(self._answer.seams)

    @property
    def stream_id(self) -> str | None:
        """What Mulgil calls the stream; None before the first chunk, and on other servers."""
        return self._answer.stream_id


class ResilientStream(_Read):
    """The chunks of a chat, as `client.chat.completions.create(stream=True)` gives them; see `resilient_stream`."""

    def __init__(self, answer: Answer, chunks: Generator["ChatCompletionChunk"]) -> None:
        super().__init__(answer)
        self._chunks = chunks

    def __iter__(self) -> Iterator["ChatCompletionChunk"]:
        return self

    def __next__(self) -> "ChatCompletionChunk":
        return next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; the server stops making the answer."""
        self._chunks.close()


class AsyncResilientStream(_Read):
    """`ResilientStream` for `async for`; see `async_resilient_stream`."""

    def __init__(self, answer: Answer, chunks: AsyncGenerator["ChatCompletionChunk"]) -> None:
        super().__init__(answer)
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator["ChatCompletionChunk"]:
        return self

    async def __anext__(self) -> "ChatCompletionChunk":
        return await anext(self._chunks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up; the server stops making the answer."""
        await self._chunks.aclose()


def resilient_stream(
    client: "OpenAI",
    *,
    attempts: int = 5,
    back_off: BackOff | None = None,
    instruction: str = CONTINUE,
    **request: Any,
) -> ResilientStream:
    """A streamed chat that goes on after a broken line. It is asked for when its first chunk is.

    On Mulgil the stream is made resumable and goes on behind the last whole event: nothing is missing, nothing comes
    twice, and it is charged once. Any other server is asked to continue its own message; `exact` is False then,
    `seams` says where, and a `SeamWarning` is given. Answers that cannot be continued so (several choices, tools,
    reasoning, structured answers) raise what broke the line. An answer of which nothing has come is asked for again.

    Leave it by its end or by a `with` block, which stops the server too: a kept stream goes on without readers.

    Args:
        client: its key, address and time-outs are used; its own retries are not.
        attempts: tries in a row without progress; on other servers than Mulgil, tries altogether.
        back_off: how long to wait between them.
        instruction: asks a model of another server to continue its message.
        request: the arguments of `client.chat.completions.create`.

    Raises:
        openai.APIError: while it is read: the answer failed (an error in the stream); it was refused; the line stayed
            broken (`APIConnectionError`); Mulgil keeps it no more, as after a restart (`NotFoundError`, code
            `stream_not_found`). `text` is what had come.
    """
    answer = Answer(request, instruction)
    tries = Tries(attempts, back_off or BackOff())
    return ResilientStream(answer, chunks_of(client.with_options(max_retries=0), answer, tries))


def async_resilient_stream(
    client: "AsyncOpenAI",
    *,
    attempts: int = 5,
    back_off: BackOff | None = None,
    instruction: str = CONTINUE,
    **request: Any,
) -> AsyncResilientStream:
    """`resilient_stream` for `AsyncOpenAI`: not awaited itself, and read by `async for`."""
    answer = Answer(request, instruction)
    tries = Tries(attempts, back_off or BackOff())
    return AsyncResilientStream(answer, async_chunks_of(client.with_options(max_retries=0), answer, tries))
