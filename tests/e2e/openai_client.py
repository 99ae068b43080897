"""Drives a running gateway with the OpenAI SDK, of whichever major is installed beside this file's interpreter.

Run as a program (`openai_client.py BASE_URL KEY MODEL`) it prints what it read as one JSON object; the SDK checks every
field of every response and chunk on the way (`_strict_response_validation`).
"""

import asyncio
import json
import sys
from typing import Any

import openai

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def read(base_url: str, key: str, model: str) -> dict[str, Any]:
    """Ask the same question plainly and as a stream, with the synchronous and the asynchronous client."""
    options: dict[str, Any] = {
        "base_url": base_url,
        "api_key": key,
        "max_retries": 0,
        "_strict_response_validation": True,
    }
    request: dict[str, Any] = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 20}
    found: dict[str, Any] = {"version": openai.__version__}

    with openai.OpenAI(**options) as client:
        plain = client.chat.completions.create(**request)
        found["plain"] = plain.model_dump()
        found["stream"] = [
            chunk.model_dump()
            for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
        ]
        found["models"] = [one.id for one in client.models.list()]
        found["retrieved"] = client.models.retrieve(model).id
        with client.chat.completions.stream(**request) as helper:
            found["helper"] = helper.get_final_completion().model_dump()
        mistakes: dict[str, dict[str, Any]] = {"range": {"temperature": 9}, "model": {"model": "nope"}}
        for name, wrong in mistakes.items():
            try:
                client.chat.completions.create(**request | wrong, stream=True)
            except openai.APIStatusError as error:
                found[name] = [type(error).__name__, error.status_code, error.code, error.param, error.request_id]

    async def asynchronously() -> None:
        async with openai.AsyncOpenAI(**options) as client:
            found["async plain"] = (await client.chat.completions.create(**request)).model_dump()
            stream = await client.chat.completions.create(**request, stream=True)
            found["async stream"] = [chunk.model_dump() async for chunk in stream]

    asyncio.run(asynchronously())
    return found


if __name__ == "__main__":
    json.dump(read(*sys.argv[1:4]), sys.stdout)
