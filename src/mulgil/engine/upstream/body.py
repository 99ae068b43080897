"""What an upstream is asked: the client's request, as far as it means something there."""

from typing import Any

import orjson

from mulgil.engine.base import TextRequest
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest

# Ours to do, or without an effect here too; what names a client or a tenant is none of another server's business.
_NOT_PASSED_ON = {
    "best_of", "max_completion_tokens", "max_tokens", "metadata", "model", "n", "prompt_cache_key", "safety_identifier",
    "service_tier", "stream", "stream_options", "truncation", "user", "verbosity",
}  # fmt: skip


def asked_of(request: TextRequest, model: str | None, *, max_tokens: int, counts: bool) -> bytes:
    """The body that asks for the answer to *request* as a stream.

    Args:
        request: as the client asked it; only fields that it has set are passed on.
        model: the name of the model there; None: the one that the client asked for.
        max_tokens: most tokens for one choice.
        counts: the server knows `continuous_usage_stats`.
    """
    body = _dumped(request, exclude=_NOT_PASSED_ON)
    body["model"] = model or request.model
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    if counts:
        body["stream_options"]["continuous_usage_stats"] = True
    if request.choices > 1:
        body["n"] = request.choices
    if isinstance(request, CompletionRequest):
        body["max_tokens"] = 0 if request.output_tokens == 0 else max_tokens
        if request.asked_logprobs is not None:
            body["logprobs"] = request.asked_logprobs
    else:
        newer = request.max_completion_tokens is not None
        body["max_completion_tokens" if newer else "max_tokens"] = max_tokens
    return orjson.dumps(body)


def param_of(request: TextRequest) -> str:
    """The field that has the prompt."""
    return "messages" if isinstance(request, ChatCompletionRequest) else "prompt"


def to_count(request: ChatCompletionRequest, model: str | None) -> dict[str, Any]:
    """The body that asks how many tokens the prompt of a chat has."""
    rendered = {"messages", "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort"}
    body = _dumped(request, include=rendered)
    return body | {"model": model or request.model}


def _dumped(request: TextRequest, **fields: set[str]) -> dict[str, Any]:
    # Unions that are told apart by the form of the JSON warn of their own objects, and dump them all the same.
    return request.model_dump(**fields, exclude_none=True, by_alias=True, warnings=False)  # type: ignore[arg-type]  # ours
