"""Ask several questions at once, and stream one answer, with asyncio. Needs: pip install openai."""

import asyncio
import os

from openai import AsyncOpenAI

MODEL = os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct")


async def ask(client: AsyncOpenAI, question: str) -> str:
    completion = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], max_completion_tokens=60
    )
    return completion.choices[0].message.content or ""


async def main() -> None:
    # One client for the whole program: it keeps its connections open between requests.
    async with AsyncOpenAI(
        base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    ) as client:
        questions = ["What is a river?", "What is a lake?", "What is the sea?"]
        for answer in await asyncio.gather(*(ask(client, question) for question in questions)):
            print("-", answer)

        async with await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Where does rain come from?"}],
            max_completion_tokens=60,
            stream=True,
        ) as stream:
            async for chunk in stream:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


asyncio.run(main())
