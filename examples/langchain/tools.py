"""Let the model call a function of yours, with LangChain. Needs: pip install langchain-openai."""

import os

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """The weather in a city, now."""
    return f"Rain in {city}, 12 degrees."


model = ChatOpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    model=os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct"),
    max_tokens=200,
    temperature=0,
)
messages = [HumanMessage("What is the weather in Seoul?")]

# "required" makes the model call a tool; without it the model decides for itself.
asked = model.bind_tools([get_weather], tool_choice="required").invoke(messages)
messages.append(asked)
for call in asked.tool_calls:
    result = get_weather.invoke(call)
    print(f"{call['name']}({call['args']}) -> {result.content}")
    messages.append(result)

print(model.bind_tools([get_weather]).invoke(messages).content)
