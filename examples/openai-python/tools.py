"""Let the model call a function of yours, and answer with what it returned. Needs: pip install openai."""

import json
import os
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam

MODEL = os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct")
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def get_weather(city: str) -> str:
    return f"Rain in {city}, 12 degrees."


client = OpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
)
messages: list[Any] = [{"role": "user", "content": "What is the weather in Seoul?"}]

# "required" makes the model call a tool; with "auto" it decides for itself.
asked = client.chat.completions.create(
    model=MODEL, messages=messages, tools=[WEATHER], tool_choice="required", temperature=0
)
messages.append(asked.choices[0].message)
for call in asked.choices[0].message.tool_calls or []:
    if call.type == "function":
        # What the model wrote is input like any other: check it before you act on it.
        result = get_weather(**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) -> {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], max_completion_tokens=100)
print(answer.choices[0].message.content)
