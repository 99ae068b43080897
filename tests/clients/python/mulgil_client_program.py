"""Reads streams and tries again with `mulgil.client`, under openai 3 and under openai 2."""

import asyncio
import functools
import warnings
from collections.abc import Callable
from typing import Any

import openai
from findings import report, told
from openai.lib.streaming.chat import ChatCompletionStreamState

from mulgil.client import (
    BackOff,
    SeamWarning,
    async_call_with_retry,
    async_resilient_stream,
    call_with_retry,
    resilient_stream,
)

TOLD: dict[str, Any] = told()
SOON = BackOff(base=0.01, cap=0.1)
A_SECOND = BackOff(base=1, cap=1, chance=lambda: 1.0)


def options(where: str, **more: Any) -> dict[str, Any]:
    return {"base_url": f"{TOLD[where]}/v1", "api_key": TOLD["key"], "timeout": 20} | more


def request(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": TOLD["model"], "messages": [{"role": "user", "content": TOLD[prompt]}]} | more


def finding(stream: Any, error: Exception | None = None) -> dict[str, Any]:
    return {
        "text": stream.text,
        "exact": stream.exact,
        "seams": stream.seams,
        "kept": stream.stream_id is not None,
        "raised": type(error).__name__ if error else None,
        "code": getattr(error, "code", None),
        "notes": getattr(error, "__notes__", []),
    }


def read(where: str, asked: dict[str, Any], **how: Any) -> dict[str, Any]:
    """What a stream came to, with the texts of its chunks, and the warnings that it gave."""
    chunks: list[Any] = []
    error = None
    stream = resilient_stream(openai.OpenAI(**options(where)), **{"back_off": SOON} | how, **asked)
    try:
        for chunk in stream:
            assert isinstance(chunk, openai.types.chat.ChatCompletionChunk)
            chunks.append(chunk)
    except openai.APIError as raised:
        error = raised
    return finding(stream, error) | told_by(chunks)


async def read_async(where: str, asked: dict[str, Any], **how: Any) -> dict[str, Any]:
    chunks: list[Any] = []
    error = None
    async with openai.AsyncOpenAI(**options(where)) as client:
        stream = async_resilient_stream(client, **{"back_off": SOON} | how, **asked)
        try:
            async for chunk in stream:
                chunks.append(chunk)
        except openai.APIError as raised:
            error = raised
        return finding(stream, error) | told_by(chunks)


def told_by(chunks: list[Any]) -> dict[str, Any]:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "joined": "".join(choice.delta.content or "" for choice in choices if not choice.index),
        "roles": [choice.index for choice in choices if choice.delta.role],
        "finish": [choice.finish_reason for choice in choices if choice.finish_reason],
        "usage": [chunk.usage.completion_tokens for chunk in chunks if chunk.usage],
    }


def put_together(where: str) -> Any:
    """The completion that the chunks of calls of two choices make."""
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    asked = request("calls", tools=tools, n=2)
    for chunk in resilient_stream(openai.OpenAI(**options(where)), attempts=60, back_off=SOON, **asked):
        state.handle_chunk(chunk)
    return [choice.model_dump(mode="json") for choice in state.get_final_completion().choices]


def leave() -> int:
    """Reads five chunks of an endless answer."""
    with resilient_stream(openai.OpenAI(**options("quiet")), **request("endless")) as stream:
        return sum(1 for _ in zip(range(5), stream, strict=False))


def leave_without_a_block() -> int:
    for number, _ in enumerate(resilient_stream(openai.OpenAI(**options("quiet")), **request("endless"))):
        if number == 5:
            return number
    raise AssertionError("it ended")


async def be_cancelled() -> str:
    async with openai.AsyncOpenAI(**options("quiet")) as client:
        stream = async_resilient_stream(client, **request("endless"))
        try:
            async with asyncio.timeout(0.5):
                async for _ in stream:
                    pass
        except TimeoutError:
            return "cancelled"
    raise AssertionError("it ended")


def warned(where: str, asked: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = read(where, asked)
    ours = [one for one in seen if issubclass(one.category, SeamWarning)]
    return found | {"warned": [one.filename == __file__ for one in ours]}


def plain(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Count."}], **more}


def tried(model: str, where: str = "plain", timeout: float = 20, **how: Any) -> dict[str, Any]:
    """What a call that is tried again came to, and how long each wait would have been."""
    waits: list[float] = []
    client = openai.OpenAI(**options(where, max_retries=0, timeout=timeout))
    call = functools.partial(client.chat.completions.create, **plain(model))
    try:
        call_with_retry(call, sleep=waits.append, **how)
    except openai.APIError as error:
        return {"waits": waits, "raised": type(error).__name__}
    return {"waits": waits, "raised": None}


async def tried_async(model: str) -> dict[str, Any]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with openai.AsyncOpenAI(**options("plain", max_retries=0)) as client:
        call = functools.partial(client.chat.completions.create, **plain(model))
        try:
            await async_call_with_retry(call, sleep=sleep)
        except openai.APIError as error:
            return {"waits": waits, "raised": type(error).__name__}
    return {"waits": waits, "raised": None}


USAGE = {"stream_options": {"include_usage": True}}
CHECKS: dict[str, Callable[[], Any]] = {
    "version": lambda: openai.__version__,
    "cut": lambda: read("cut", request("long", **USAGE), attempts=60),
    "cut async": lambda: read_async("cut async", request("long", **USAGE), attempts=60),
    "calls": lambda: put_together("calls cut"),
    "calls uncut": lambda: put_together("gateway"),
    "heartbeats": lambda: read("pinged", request("slow"), attempts=60),
    "stays broken": lambda: read("stays broken", request("long"), attempts=3),
    "gone": lambda: read("gone", request("long"), back_off=A_SECOND),
    "given up": lambda: read("given up", request("endless"), back_off=A_SECOND),
    "failing": lambda: read("gateway", request("failing")),
    "failing async": lambda: read_async("gateway", request("failing")),
    "wrong": lambda: read("gateway", request("long", temperature=9)),
    "leaving": leave,
    "leaving without a block": leave_without_a_block,
    "cancelled": be_cancelled,
    "ordinary": lambda: read("plain", plain("ordinary")),
    "strict": lambda: read("plain", plain("strict", **USAGE)),
    "broken": lambda: read("plain", plain("broken", max_tokens=10)),
    "broken async": lambda: read_async("plain", plain("broken async")),
    "nothing came": lambda: read("plain", plain("nothing came")),
    "only the ending": lambda: read("plain", plain("only the ending")),
    "always broken": lambda: read("plain", plain("always broken"), attempts=3),
    "no end": lambda: read("plain", plain("no end"), attempts=1),
    "tools": lambda: read("plain", plain("tools")),
    "structured": lambda: read("plain", plain("structured", response_format={"type": "json_object"})),
    "busy stream": lambda: read("plain", plain("busy stream")),
    "nobody there": lambda: tried("any", where="nowhere"),
    "too slow": lambda: tried("too slow", timeout=0.2, attempts=2),
    "four attempts": lambda: tried("four attempts", attempts=4),
    "deadline": lambda: tried("deadline", deadline=1.0),
    "async": lambda: tried_async("async"),
    "async wrong": lambda: tried_async("async wrong"),
    **{model: functools.partial(tried, model) for model in TOLD["refused"]},
}
# Warnings belong to the process, so the check that counts them runs alone.
WARNED = warned("plain", plain("warned"))

report(CHECKS | {"warned": lambda: WARNED})
