"""What is done beside the event loop, and that the loop goes on meanwhile."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import orjson
import pytest
from checks import RULES
from harness import MODEL
from starlette.requests import Request
from starlette.types import Message

from mulgil.api.body import read_checked
from mulgil.api.chat import checked_chat
from mulgil.aside import Aside
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.simulated_embedding import SimulatedEmbedder
from mulgil.errors import ContextLengthError, MulgilError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest
from mulgil.schemas.embedding import EmbeddingRequest
from mulgil.schemas.messages import ChatMessage
from mulgil.schemas.tokenize import TokenizeRequest

LARGE = 10**9
WORDS = "the river reaches the sea " * 75_000
PART = {"type": "text", "text": "a"}


async def test_what_is_small_is_done_at_once_and_what_is_large_in_a_thread() -> None:
    aside = Aside()
    assert await aside.run(threading.get_ident, size=10) == threading.get_ident()
    first = await aside.run(threading.get_ident, size=LARGE)
    assert first != threading.get_ident()
    assert await aside.run(threading.get_ident, size=LARGE) == first


@pytest.mark.parametrize("size", [10, LARGE])
async def test_what_the_work_raises_is_raised(size: int) -> None:
    def fail() -> None:
        raise ContextLengthError(limit=1, prompt_tokens=2, param="prompt")

    with pytest.raises(ContextLengthError):
        await Aside().run(fail, size=size)


async def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    aside, going, done = Aside(), threading.Event(), []
    first = asyncio.create_task(aside.run(going.wait, size=LARGE))
    left = asyncio.create_task(aside.run(lambda: done.append("left"), size=LARGE))
    last = asyncio.create_task(aside.run(lambda: done.append("last"), size=LARGE))
    await asyncio.sleep(0.01)
    left.cancel()
    await asyncio.sleep(0)
    going.set()
    await asyncio.gather(first, last)
    assert left.cancelled()
    assert done == ["last"]


async def ticks_during(work: Coroutine[Any, Any, object]) -> int:
    """How often the loop came round while *work* was done, well or not."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        await work
    except MulgilError:
        pass
    finally:
        ticking.cancel()
    return ticks


def checking(body: dict[str, Any]) -> Coroutine[Any, Any, ChatCompletionRequest]:
    raw, came = orjson.dumps(body), False

    async def receive() -> Message:
        nonlocal came
        if came:
            await asyncio.Event().wait()
        came = True
        return {"type": "http.request", "body": raw, "more_body": False}

    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
    return read_checked(request, RULES, lambda found: checked_chat(found, RULES))


def user(content: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


CHAT = ChatCompletionRequest(model=MODEL, messages=[ChatMessage(role="user", content=WORDS)])
LONG_CHAT = ChatCompletionRequest(
    model=MODEL, messages=[ChatMessage(role="user", content=WORDS[:20_000])] * 60, truncation="auto"
)
WORKS = {
    "a body of many parts": lambda: checking(user([PART] * 40_000)),
    "a long chat": lambda: SimulatedEngine().prepare(CHAT, tenant="t"),
    "a chat that loses its oldest turns": lambda: SimulatedEngine().prepare(LONG_CHAT, tenant="t"),
    "a long prompt": lambda: SimulatedEngine().prepare(CompletionRequest(model=MODEL, prompt=WORDS), tenant="t"),
    "many choices of a long prompt": lambda: SimulatedEngine(max_model_len=10**6).prepare(
        CompletionRequest(model=MODEL, prompt=WORDS[:200_000], n=16), tenant="t"
    ),
    "a text to tokenise": lambda: SimulatedEngine().tokenize(TokenizeRequest(prompt=WORDS)),
    "a conversation to tokenise": lambda: SimulatedEngine().tokenize(TokenizeRequest(messages=CHAT.messages)),
    "tokens to tell": lambda: SimulatedEngine().detokenize([70] * 1_000_000),
    "texts to embed": lambda: SimulatedEmbedder(max_model_len=10**7).prepare(
        EmbeddingRequest(model="e", input=[WORDS] * 2)
    ),
    "a text to count for embeddings": lambda: SimulatedEmbedder().tokenize(WORDS),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
async def test_the_loop_comes_round_while_the_largest_requests_are_worked_on(work: Any) -> None:
    # Some 10 to 100 times; not once where it is held.
    assert await ticks_during(work()) >= 3
