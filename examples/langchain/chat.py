"""Invoke and stream with LangChain. Needs: pip install langchain-openai."""

import os

from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    model=os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct"),
    max_tokens=100,
    stream_usage=True,  # LangChain asks for the usage of streams only where it is told to
)

message = model.invoke([("system", "You answer in one sentence."), ("human", "What is the capital of France?")])
print(message.content)
print(message.usage_metadata)

for chunk in model.stream("Tell me about rivers."):
    print(chunk.content, end="", flush=True)
print()
