"""Chat, complete, stream and asyncio with LlamaIndex. Needs: pip install llama-index-llms-openai-like."""

import asyncio
import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    api_base=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    model=os.environ.get("MULGIL_MODEL", "smollm2-135m-instruct"),
    is_chat_model=True,  # otherwise LlamaIndex sends prompts without the model's chat template
    max_tokens=100,
)
messages = [
    ChatMessage(role="system", content="You answer in one sentence."),
    ChatMessage(role="user", content="What is the capital of France?"),
]

print(model.chat(messages).message.content)
print(model.complete("Name a river."))

for piece in model.stream_chat(messages):
    print(piece.delta or "", end="", flush=True)
print()


async def main() -> None:
    print((await model.achat(messages)).message.content)


asyncio.run(main())
