"""Does with LlamaIndex what its users do."""

from typing import Any

import openai
from findings import report, told
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

TOLD = told()
MESSAGES = [ChatMessage(role="user", content="What is a river?")]
CALLS = '/simulate {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Seoul"}}]}'


class City(BaseModel):
    """What a structured answer must look like."""

    name: str
    population: int


def llm(**more: Any) -> Any:
    options: dict[str, Any] = {
        "api_base": f"{TOLD['gateway']}/v1",
        "api_key": TOLD["key"],
        "model": TOLD["model"],
        "is_chat_model": True,
        "max_retries": 0,
        "additional_kwargs": {"seed": 1},
    }
    return OpenAILike(**options | more)


def chatted() -> dict[str, Any]:
    answer = llm().chat(MESSAGES)
    return {"text": answer.message.content, "usage": answer.raw.usage.model_dump()}


def streamed() -> dict[str, Any]:
    pieces = [piece.delta or "" for piece in llm().stream_chat(MESSAGES)]
    return {"text": "".join(pieces), "pieces": len(pieces)}


async def asynchronous() -> dict[str, Any]:
    model = llm()
    plain = (await model.achat(MESSAGES)).message.content
    stream = "".join([piece.delta or "" async for piece in await model.astream_chat(MESSAGES)])
    return {"plain": plain, "stream": stream}


def plain_completions() -> dict[str, Any]:
    """Without `is_chat_model` LlamaIndex asks `/v1/completions`."""
    model = llm(is_chat_model=False, max_tokens=5)
    return {
        "whole": model.complete("Once upon a time").text,
        "stream": "".join(piece.delta or "" for piece in model.stream_complete("Once upon a time")),
        "chat": model.chat(MESSAGES).message.content,
    }


def tools() -> list[Any]:
    def get_weather(city: str) -> str:
        """The weather in a city, now."""
        return f"Rain in {city}."

    model, tool = llm(is_function_calling_model=True), FunctionTool.from_defaults(get_weather)
    answer = model.chat_with_tools([tool], user_msg=CALLS)
    calls = model.get_tool_calls_from_response(answer)
    return [{"name": call.tool_name, "arguments": call.tool_kwargs} for call in calls]


def structured() -> dict[str, Any]:
    model = llm(is_function_calling_model=True, should_use_structured_outputs=True)
    answer = model.as_structured_llm(City).complete("What is the capital of France?")
    assert isinstance(answer.raw, City)
    return answer.raw.model_dump()


def embedded() -> dict[str, Any]:
    embedder = OpenAILikeEmbedding(
        api_base=f"{TOLD['gateway']}/v1", api_key=TOLD["key"], model_name=TOLD["embedding_model"], max_retries=0
    )
    texts = ["rivers carry water", "bread is baked"]
    index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=embedder)
    (nearest,) = index.as_retriever(embed_model=embedder, similarity_top_k=1).retrieve("rivers carry water")
    return {"nearest": nearest.text, "one": embedder.get_text_embedding(texts[0])}


report(
    {
        "version": lambda: openai.__version__,
        "chatted": chatted,
        "completed": lambda: llm().complete("What is a river?").text,
        "streamed": streamed,
        "asynchronous": asynchronous,
        "plain completions": plain_completions,
        "tools": tools,
        "structured": structured,
        "embedded": embedded,
        "failing": lambda: list(
            llm(api_key=TOLD["failing_key"], max_retries=3).stream_complete('/simulate {"tokens": 9, "fail_at": 3}')
        ),
        "no such model": lambda: llm(model="nope").chat(MESSAGES),
    }
)
