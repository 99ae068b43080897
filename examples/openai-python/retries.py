"""Try again what is worth it, as long as the server says. Needs: pip install openai.

The SDK does this by itself, twice (`max_retries=2`), and obeys the server's `retry-after-ms`. Write it out only if you
want to decide for yourself, and then decide by the exception's type, not by its text.
"""

import os
import random
import sys
import time

import openai

client = openai.OpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    max_retries=0,
    timeout=60,
)


def ask(question: str, *, attempts: int = 5) -> str:
    for attempt in range(attempts):
        try:
            completion = client.chat.completions.create(
                model=os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct"),
                messages=[{"role": "user", "content": question}],
                max_completion_tokens=100,
            )
            return completion.choices[0].message.content or ""
        except openai.RateLimitError as error:  # 429
            if error.code == "request_exceeds_limit" or attempt + 1 == attempts:
                raise  # larger than a whole limit: it will never fit
            wait(attempt, error.response.headers.get("retry-after-ms"))
        except openai.InternalServerError as error:  # 500 and above
            if attempt + 1 == attempts:
                raise
            wait(attempt, error.response.headers.get("retry-after-ms"))
        except openai.APIConnectionError:  # no answer at all; time-outs are among these
            if attempt + 1 == attempts:
                raise
            wait(attempt, None)
    raise AssertionError("the last attempt returns or raises")


def wait(attempt: int, milliseconds: str | None) -> None:
    """As long as the server says, else 0.5, 1, 2, 4 … s; with some chance, so that not all clients return at once."""
    seconds = float(milliseconds) / 1000 if milliseconds else 0.5 * 2**attempt
    seconds *= random.uniform(1, 1.25)
    print(f"trying again in {seconds:.1f} s", file=sys.stderr)
    time.sleep(seconds)


try:
    print(ask("What is the capital of France?"))
except openai.APIStatusError as refused:  # 4xx: another try would be refused as well
    sys.exit(f"{type(refused).__name__} {refused.status_code} {refused.code}: {refused.message} ({refused.request_id})")
except openai.APIError as failed:
    sys.exit(f"{type(failed).__name__}: {failed.message}")
