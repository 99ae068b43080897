"""Ask a question and read the whole answer. Needs: pip install openai."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
)

completion = client.chat.completions.create(
    model=os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct"),
    messages=[
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ],
    max_completion_tokens=100,
)

print(completion.choices[0].message.content)
if completion.usage:
    print(f"[{completion.usage.prompt_tokens} tokens in, {completion.usage.completion_tokens} out]")
