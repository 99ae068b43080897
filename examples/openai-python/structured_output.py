"""Get an answer as an object of a class of yours, never as text to be parsed. Needs: pip install openai pydantic."""

import os

from openai import OpenAI
from pydantic import BaseModel, Field


class City(BaseModel):
    """What the answer must look like; the model cannot write anything else."""

    name: str = Field(max_length=40)
    country: str = Field(max_length=40)
    is_capital: bool


client = OpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
)

completion = client.chat.completions.parse(
    model=os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct"),
    messages=[{"role": "user", "content": "Which city is the capital of France?"}],
    response_format=City,
    temperature=0,
    # Enough for the whole object: an answer that is cut raises openai.LengthFinishReasonError.
    max_completion_tokens=500,
)

city = completion.choices[0].message.parsed
assert city is not None
print(f"{city.name}, {city.country}: {'a capital' if city.is_capital else 'no capital'}")
