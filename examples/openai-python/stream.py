"""Print an answer while it is made. Needs: pip install openai."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
)

stream = client.chat.completions.create(
    model=os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct"),
    messages=[{"role": "user", "content": "Tell me about rivers."}],
    max_completion_tokens=200,
    stream=True,
    stream_options={"include_usage": True},  # the last chunk has the usage, and no choices
)

# Leaving this block early, by `break` or an exception, hangs up, and the server stops making tokens.
with stream:
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f"\n[{chunk.usage.completion_tokens} tokens]")
