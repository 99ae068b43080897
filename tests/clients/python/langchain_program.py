"""Does with LangChain what its users do."""

import asyncio
from typing import Any

import openai
from findings import report, told
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

TOLD = told()
QUESTION = "What is a river?"
WEATHER = {
    "title": "get_weather",
    "description": "The weather in a city, now.",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


def chat_model(gateway: str = "gateway", key: str = "key", **more: Any) -> Any:
    options = {"base_url": f"{TOLD[gateway]}/v1", "api_key": TOLD[key], "model": TOLD["model"], "seed": 1}
    return ChatOpenAI(**options | {"max_retries": 0, "stream_usage": True} | more)


def invoked() -> dict[str, Any]:
    message = chat_model().invoke(QUESTION)
    return {"text": message.content, "usage": message.usage_metadata, **message.response_metadata}


def streamed() -> dict[str, Any]:
    chunks = list(chat_model().stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return {"text": whole.content, "usage": whole.usage_metadata, "chunks": len(chunks), **whole.response_metadata}


async def asynchronous() -> str:
    """Several streams side by side, as in an agent; their one text."""

    async def one() -> str:
        return "".join([str(chunk.content) async for chunk in chat_model().astream(QUESTION)])

    (text,) = set(await asyncio.gather(one(), one(), one()))
    return text


def tool_round_trip() -> dict[str, Any]:
    model, question = chat_model(), HumanMessage(QUESTION)
    asked = model.bind_tools([WEATHER], tool_choice="get_weather").invoke([question])
    (call,) = asked.tool_calls
    history = [question, asked, ToolMessage("Rain.", tool_call_id=call["id"])]
    return {"call": call, "answer": model.bind_tools([WEATHER]).invoke(history).content}


def tools_streamed() -> list[Any]:
    script = '/simulate {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Seoul"}}]}'
    whole: Any = None
    for chunk in chat_model().bind_tools([WEATHER]).stream(script):
        whole = chunk if whole is None else whole + chunk
    calls: list[Any] = whole.tool_calls
    return calls


def two_calls_answered() -> str:
    """A history with two calls in one message, whose results come in the other order."""
    calls = [{"name": "get_weather", "args": {"city": city}, "id": city} for city in ("Seoul", "Busan")]
    results = [ToolMessage("Rain.", tool_call_id=city) for city in ("Busan", "Seoul")]
    return str(chat_model().invoke([HumanMessage(QUESTION), AIMessage("", tool_calls=calls), *results]).content)


def structured(method: str) -> Any:
    schema = {
        "title": "City",
        "description": "A city.",
        "type": "object",
        "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
        "required": ["name", "population"],
        "additionalProperties": False,
    }
    return chat_model().with_structured_output(schema, method=method).invoke(QUESTION)


def embedded() -> dict[str, Any]:
    embeddings = OpenAIEmbeddings(
        base_url=f"{TOLD['gateway']}/v1",
        api_key=TOLD["key"],
        model=TOLD["embedding_model"],
        check_embedding_ctx_length=False,
    )
    return {
        "documents": embeddings.embed_documents(["rivers and lakes", "bread"]),
        "query": embeddings.embed_query("bread"),
    }


def completed() -> Any:
    """The older class sends a list of prompts, and nulls for all that is not set."""
    model = OpenAI(base_url=f"{TOLD['gateway']}/v1", api_key=TOLD["key"], model=TOLD["model"], max_tokens=5)
    return model.invoke("Once upon a time")


report(
    {
        "version": lambda: openai.__version__,
        "invoked": invoked,
        "streamed": streamed,
        "asynchronous": asynchronous,
        "tool round trip": tool_round_trip,
        "tools streamed": tools_streamed,
        "two calls answered": two_calls_answered,
        "structured by schema": lambda: structured("json_schema"),
        "structured by function": lambda: structured("function_calling"),
        "embedded": embedded,
        "completed": completed,
        "too long": lambda: chat_model().invoke("water " * 20_000),
        "no such model": lambda: chat_model(model="nope").invoke(QUESTION),
        "rate limited": lambda: chat_model("full", "limited_key", max_retries=2, max_tokens=5).invoke(QUESTION),
        "failing": lambda: list(
            chat_model(key="failing_key", max_retries=2).stream('/simulate {"tokens": 9, "fail_at": 3}')
        ),
    }
)
