"""Does with the OpenAI SDK what its users do. Runs under openai 3 and under openai 2, strict about every field."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
from findings import report, told
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic import BaseModel

TOLD = told()
MODEL = TOLD["model"]
QUESTION: list[Any] = [{"role": "user", "content": "What is a river?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALLS = '/simulate {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Seoul"}}]}'
THINKS = '/simulate {"reasoning": "It is wet.", "text": "A river."}'
OBJECT = '/simulate {"text": "{\\"name\\": \\"Seoul\\", \\"population\\": 9 }"}'


class City(BaseModel):
    """What a structured answer must look like."""

    name: str
    population: int


def options(gateway: str = "gateway", key: str = "key", **more: Any) -> dict[str, Any]:
    return {"base_url": f"{TOLD[gateway]}/v1", "api_key": TOLD[key], "_strict_response_validation": True} | more


client = openai.OpenAI(**options(max_retries=0))
# The SDK's own types are stricter than OpenAI's server in two places: a streamed completion that is not at its end yet,
# and vectors in base64, which it checks before it unpacks them.
lenient = openai.OpenAI(**options(max_retries=0, _strict_response_validation=False))
create: Callable[..., Any] = client.chat.completions.create


def ask(content: str = "What is a river?", **fields: Any) -> Any:
    return create(**{"model": MODEL, "messages": [{"role": "user", "content": content}], "seed": 1} | fields)


def chunks_of(**fields: Any) -> list[Any]:
    return [chunk.model_dump(mode="json") for chunk in ask(stream=True, **fields)]


def helped(content: str = "What is a river?", **fields: Any) -> dict[str, Any]:
    """The final completion and the kinds of events of the `.stream()` helper."""
    request: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": content}], "seed": 1}
    with client.chat.completions.stream(**request | fields) as stream:
        kinds = sorted({event.type for event in stream})
        return {"events": kinds, "final": stream.get_final_completion().model_dump(mode="json")}


def raw() -> dict[str, Any]:
    answer = client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION)
    parsed = answer.parse()
    return {"headers": dict(answer.headers), "id": parsed.id, "request_id": parsed._request_id}


def tool_round_trip() -> dict[str, Any]:
    """A call that is asked for, and an answer to its result."""
    asked = ask("What is the weather?", tools=[WEATHER], tool_choice="required").choices[0]
    (call,) = asked.message.tool_calls
    messages = [
        *QUESTION,
        asked.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
    ]
    answer = create(model=MODEL, messages=messages, tools=[WEATHER])
    return {"asked": asked.model_dump(mode="json"), "answer": answer.model_dump(mode="json")}


def accumulated_tools() -> dict[str, Any]:
    """Raw chunks of a call, put together by the SDK's own state."""
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    for chunk in ask(CALLS, tools=[WEATHER], stream=True):
        state.handle_chunk(chunk)
    return state.get_final_completion().model_dump(mode="json")


def parsed() -> Any:
    answer = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=City)
    assert isinstance(answer.choices[0].message.parsed, City)
    return answer.choices[0].message.parsed.model_dump()


def parsed_stream() -> Any:
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, response_format=City) as stream:
        message = stream.get_final_completion().choices[0].message
    assert isinstance(message.parsed, City)
    return message.parsed.model_dump()


def parsed_although_cut() -> Any:
    messages: list[Any] = [{"role": "user", "content": OBJECT}]
    return client.chat.completions.parse(model=MODEL, messages=messages, response_format=City, max_tokens=2)


def json_mode() -> Any:
    return ask(response_format={"type": "json_object"}).choices[0].message.content


def completions() -> dict[str, Any]:
    prompts = client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=5)
    stream = lenient.completions.create(model=MODEL, prompt="one", max_tokens=5, stream=True)
    return {
        "prompts": prompts.model_dump(mode="json"),
        "stream": [chunk.model_dump(mode="json") for chunk in stream],
    }


def embeddings() -> dict[str, Any]:
    """As the SDK asks by itself (base64), and as floats."""
    model, texts = TOLD["embedding_model"], ["rivers and lakes", "bread"]
    packed = lenient.embeddings.create(model=model, input=texts)
    plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
    return {
        "packed": [one.embedding for one in packed.data],
        "plain": [one.embedding for one in plain.data],
        "index": [one.index for one in packed.data],
        "usage": packed.usage.model_dump(),
    }


def models() -> dict[str, Any]:
    return {"list": [one.id for one in client.models.list()], "one": client.models.retrieve(MODEL).id}


async def asynchronous() -> dict[str, Any]:
    async with openai.AsyncOpenAI(**options(max_retries=0)) as own:
        plain = await own.chat.completions.create(model=MODEL, messages=QUESTION, seed=1)
        stream = await own.chat.completions.create(model=MODEL, messages=QUESTION, seed=1, stream=True)
        deltas = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
        return {"plain": plain.choices[0].message.content, "stream": "".join(deltas)}


def failing(**fields: Any) -> Any:
    """The engine fails after some tokens; with the retries that the SDK makes by itself."""
    own = openai.OpenAI(**options(key="failing_key"))
    content = '/simulate {"tokens": 9, "fail_at": 3}'
    stream: Any = own.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], stream=True, **fields
    )
    return [chunk.model_dump(mode="json") for chunk in stream]


def failing_helper() -> Any:
    return helped('/simulate {"tokens": 9, "fail_at": 3}')


def hanging_up() -> dict[str, Any]:
    """Leave in the middle, and see what the server still does while this client lives on."""
    own = openai.OpenAI(**options("quiet", max_retries=0))
    content = '/simulate {"tokens": 5000, "gap": 0.01}'
    with own.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], stream=True, max_tokens=5000
    ) as stream:
        for _ in range(3):
            next(iter(stream))
        before = running()
    until = time.monotonic() + 2
    while running() and time.monotonic() < until:
        time.sleep(0.02)
    return {"before": before, "after": running()}


def running() -> int:
    found: int = httpx.get(f"{TOLD['quiet']}/health").json()["running"]
    return found


def refused(gateway: str, key: str, **fields: Any) -> Any:
    """A request that is refused, with the retries that the SDK makes by itself."""
    own: Any = openai.OpenAI(**options(gateway, key))
    return own.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": 5} | fields)


report(
    {
        "version": lambda: openai.__version__,
        "chat": lambda: ask().model_dump(mode="json"),
        "stream": lambda: chunks_of(stream_options={"include_usage": True}),
        "helper": helped,
        "two choices": lambda: ask(n=2).model_dump(mode="json"),
        "two choices streamed": lambda: helped(n=2),
        "raw": raw,
        "asynchronous": asynchronous,
        "cut": lambda: ask('/simulate {"tokens": 9}', max_tokens=3).model_dump(mode="json"),
        "tool round trip": tool_round_trip,
        "tools": lambda: ask(CALLS, tools=[WEATHER]).model_dump(mode="json"),
        "tools streamed": lambda: helped(CALLS, tools=[WEATHER]),
        "tools accumulated": accumulated_tools,
        "parsed": parsed,
        "parsed stream": parsed_stream,
        "parsed although cut": parsed_although_cut,
        "json mode": json_mode,
        "reasoning": lambda: ask(THINKS).model_dump(mode="json"),
        "reasoning streamed": lambda: [chunk.model_dump(mode="json") for chunk in ask(THINKS, stream=True)],
        "logprobs": lambda: ask(logprobs=True, top_logprobs=2).model_dump(mode="json"),
        "logprobs streamed": lambda: chunks_of(logprobs=True, top_logprobs=2),
        "completions": completions,
        "embeddings": embeddings,
        "models": models,
        "no such model": lambda: ask(model="nope"),
        "out of range": lambda: ask(temperature=9),
        "wrong key": lambda: refused("gateway", "wrong_key"),
        "too long": lambda: ask("water " * 20_000),
        "failing": failing,
        "failing helper": failing_helper,
        "hanging up": hanging_up,
        "rate limited": lambda: refused("full", "limited_key"),
        "never fits": lambda: refused("full", "never_key", max_tokens=2_000),
        "unavailable": lambda: refused("storeless", "unavailable_key"),
    }
)
