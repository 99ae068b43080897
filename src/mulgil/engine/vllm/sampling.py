"""From a request to vLLM's `SamplingParams`."""

from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from mulgil.engine.base import TextRequest
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest

_SAME = (
    "temperature", "top_p", "frequency_penalty", "presence_penalty", "top_k", "min_p", "repetition_penalty",
    "ignore_eos", "stop_token_ids",
)  # fmt: skip
_SMALLEST_TOP_P = 1e-6  # vLLM refuses 0, which means: only the likeliest token


def sampling_params(
    request: TextRequest, *, max_tokens: int, defaults: dict[str, Any], parser_request: Any = None
) -> SamplingParams:
    """What vLLM is told about *request*.

    Args:
        request: what the client asked for.
        max_tokens: most tokens for one choice.
        defaults: the model's own sampling parameters.
        parser_request: vLLM's request as its parser changed it; its constraint wins over the client's.

    Raises:
        VLLMValidationError: a value is out of vLLM's range.
    """
    asked = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    if request.top_p is not None:
        asked["top_p"] = max(request.top_p, _SMALLEST_TOP_P)
    if parser_request is not None:
        asked["structured_outputs"] = parser_request.extract_structured_outputs()
        asked["skip_special_tokens"] = parser_request.skip_special_tokens
    else:
        asked["structured_outputs"] = structured_outputs(request)
    if isinstance(request, CompletionRequest) and request.echo and request.asked_logprobs is not None:
        asked["prompt_logprobs"] = request.asked_logprobs
    return SamplingParams(
        **defaults | asked,
        n=request.choices,
        seed=request.seed,
        stop=request.stop or [],
        logprobs=request.asked_logprobs,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()} or None,
        min_tokens=min(request.min_tokens or 0, max_tokens),
        max_tokens=max_tokens,
        output_kind=RequestOutputKind.CUMULATIVE,
        skip_clone=True,
    )


def structured_outputs(request: TextRequest) -> StructuredOutputsParams | None:
    """The constraint that the client asked for."""
    if (asked := request.structured_outputs) is not None:
        # An empty schema allows everything; vLLM takes it for none at all.
        return StructuredOutputsParams(
            json=asked.schema_ or ({"type": _ANY} if asked.schema_ is not None else None),
            regex=asked.regex,
            choice=asked.choice,
            grammar=asked.grammar,
        )
    if not isinstance(request, ChatCompletionRequest) or request.response_format is None:
        return None
    if request.response_format.type == "text":
        return None
    schema = request.response_format.json_schema
    if schema is not None and schema.definition:
        return StructuredOutputsParams(json=schema.definition)
    return StructuredOutputsParams(json_object=True)


_ANY = ["object", "array", "string", "number", "boolean", "null"]
