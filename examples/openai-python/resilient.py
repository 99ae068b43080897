"""Read an answer to its end although lines break. Needs: pip install openai mulgil.

On Mulgil it goes on exactly where it stopped, and is paid for once. Any other server is asked to continue its message.
"""

import os
import sys

import openai

from mulgil.client import call_with_retry, resilient_stream

client = openai.OpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    max_retries=0,  # otherwise each try below is three
    timeout=60,  # Mulgil says something every 15 s, so that a line that says nothing for so long is broken
)
model = os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct")

try:
    topic = call_with_retry(
        lambda: client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Name a river."}], max_completion_tokens=10
        )
    )
    stream = resilient_stream(
        client,
        model=model,
        messages=[{"role": "user", "content": f"Tell me about {topic.choices[0].message.content}."}],
        max_completion_tokens=200,
    )
    with stream:  # leaving it early stops the server
        for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
except openai.APIError as error:
    sys.exit(f"\n{type(error).__name__}: {error.message}")

print()
if not stream.exact:
    print(f"[joined after {stream.seams} characters, where words may be missing or repeated]", file=sys.stderr)
