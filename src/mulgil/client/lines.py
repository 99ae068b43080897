"""The lines over which an answer comes: opened, read, and opened again where they break."""

import asyncio
import contextlib
import sys
import time
import warnings
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import TYPE_CHECKING, Any

from mulgil.client.answer import Answer
from mulgil.client.events import Event, EventParser
from mulgil.client.retrying import Tries, is_worth_another_try

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

_STOPPING = 5.0
_FROM_THE_READER = 4  # frames between a warning and the loop that reads the stream


class SeamWarning(UserWarning):
    """The rest of an answer was asked for anew: where it was joined, words may be missing, repeated or changed."""


def chunks_of(client: Any, answer: Answer, tries: Tries) -> Generator["ChatCompletionChunk"]:
    """The chunks of an answer. Closed before their end, they stop a stream that Mulgil keeps."""
    try:
        while not answer.whole:
            try:
                yield from _line(client, answer, tries)
            except Exception as error:
                pause = _pause(error, answer, tries)
                if pause is None:
                    raise
                time.sleep(pause)
    except BaseException as error:
        if _leaves(error, answer):
            with contextlib.suppress(Exception):
                client.delete(f"/streams/{answer.stream_id}", cast_to=object, options=_stop(answer))
        raise


def _line(client: Any, answer: Answer, tries: Tries) -> Generator["ChatCompletionChunk"]:
    """The chunks of one line; ends well only where the answer does."""
    with contextlib.closing(_opening(client, answer).response) as response, _broken_as_openai_says(response):
        answer.opened(response)
        parser = EventParser()
        for piece in response.iter_bytes():
            yield from _taken(answer, tries, parser.feed(piece))
            if answer.whole:
                return
        answer.ends()


async def async_chunks_of(client: Any, answer: Answer, tries: Tries) -> AsyncGenerator["ChatCompletionChunk"]:
    """`chunks_of` for an asynchronous client. To be cancelled stops a kept stream, too."""
    try:
        while not answer.whole:
            try:
                async with contextlib.aclosing(_async_line(client, answer, tries)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except Exception as error:
                pause = _pause(error, answer, tries)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
    except BaseException as error:
        if _leaves(error, answer):
            with contextlib.suppress(Exception):
                await client.delete(f"/streams/{answer.stream_id}", cast_to=object, options=_stop(answer))
        raise


async def _async_line(client: Any, answer: Answer, tries: Tries) -> AsyncGenerator["ChatCompletionChunk"]:
    stream = await _opening(client, answer)
    async with contextlib.aclosing(stream.response) as response:
        with _broken_as_openai_says(response):
            answer.opened(response)
            parser = EventParser()
            async for piece in response.aiter_bytes():
                for chunk in _taken(answer, tries, parser.feed(piece)):
                    yield chunk
                if answer.whole:
                    return
            answer.ends()


def _opening(client: Any, answer: Answer) -> Any:
    """The SDK's stream, or what gives it when awaited; its `response` is not read yet."""
    import openai  # noqa: PLC0415 - importing this module needs no SDK

    if answer.stream_id is None:
        return client.chat.completions.create(**answer.arguments())
    return client.get(
        f"/streams/{answer.stream_id}",
        cast_to=openai.BaseModel,
        options=answer.options,
        stream=True,
        stream_cls=openai.Stream[Any] if isinstance(client, openai.OpenAI) else openai.AsyncStream[Any],
    )


def _taken(answer: Answer, tries: Tries, events: Iterator[Event]) -> Iterator["ChatCompletionChunk"]:
    from openai.types.chat import ChatCompletionChunk  # noqa: PLC0415 - importing this module needs no SDK

    for event in events:
        known = answer.last_id
        payload = answer.take(event)
        if answer.stream_id is not None and answer.last_id != known:
            tries.begin_again()
        if payload is not None:
            yield ChatCompletionChunk.construct(**payload)
        if answer.whole:
            return


@contextlib.contextmanager
def _broken_as_openai_says(response: Any) -> Iterator[None]:
    """Breaks of the line while the body is read are raised as the SDK raises them elsewhere; openai 2 does not here."""
    import openai  # noqa: PLC0415 - importing this module needs no SDK

    transports = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    try:
        yield
    except tuple(transport.TimeoutException for transport in transports) as error:
        raise openai.APITimeoutError(request=response.request) from error
    except tuple(transport.RequestError for transport in transports) as error:
        raise openai.APIConnectionError(request=response.request) from error


def _pause(error: Exception, answer: Answer, tries: Tries) -> float | None:
    """Seconds until the next line is opened; None where there is to be none, and then the error says why."""
    if answer.resumable and _knows_nothing_of_resumable(error):
        answer.resumable = False
        return 0.0
    if is_worth_another_try(error) and answer.is_said():
        answer.whole = True
        return 0.0
    pause, obstacle = tries.pause(error), answer.why_it_cannot_go_on()
    if pause is None or obstacle:
        if answer.stream_id is not None:
            error.add_note(f"{len(answer.text)} characters of {answer.stream_id} had come, to event {answer.last_id}.")
        elif obstacle and pause is not None:
            error.add_note(f"It was not tried again: {obstacle}.")
        return None
    if answer.breaks():
        told = f"The answer was cut off after {len(answer.text)} characters, and the rest may overlap or not fit."
        warnings.warn(told, SeamWarning, stacklevel=_FROM_THE_READER)
    return pause


def _knows_nothing_of_resumable(error: Exception) -> bool:
    import openai  # noqa: PLC0415 - importing this module needs no SDK

    # Servers that refuse unknown fields name them, each in a way of its own.
    return isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError) and "resumable" in str(error)


def _leaves(error: BaseException, answer: Answer) -> bool:
    """Whether it is the reader who leaves, and a stream would go on without it."""
    return answer.stream_id is not None and not isinstance(error, Exception)


def _stop(answer: Answer) -> dict[str, Any]:
    return answer.options | {"timeout": _STOPPING}
