"""`POST /v1/chat/completions`: request and response."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from mulgil.errors import UnsupportedParameterError
from mulgil.schemas.base import Listed, RequestLimits, ResponseModel, limits_of
from mulgil.schemas.messages import ChatMessage, check_messages
from mulgil.schemas.sampling import SamplingFields, check_sampling, contradiction
from mulgil.schemas.structured import ResponseFormat, check_schema
from mulgil.schemas.tools import ToolFields, check_tools
from mulgil.schemas.usage import ChoiceLogprobs, Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]

_MOST_METADATA = 16

# Asked for and not done is worse than refused: each of these changes what the answer means.
# The values listed ask for nothing, so they are accepted.
_NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "request_id": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
_INSTEAD = {
    "function_call": "Use 'tool_choice'.",
    "functions": "Use 'tools'.",
    "guided_choice": "Use 'structured_outputs'.",
    "guided_grammar": "Use 'structured_outputs'.",
    "guided_json": "Use 'response_format' or 'structured_outputs'.",
    "guided_regex": "Use 'structured_outputs'.",
    "truncate_prompt_tokens": "Use 'truncation'.",
}

# Accepted, and without an effect on the answer that its reader could miss.
_IGNORED = frozenset(("prediction", "prompt_cache_options", "prompt_cache_retention", "store"))

Name = Annotated[str, Field(max_length=512)]


def _simple(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    raise PydanticCustomError("invalid_content", "expected a boolean, a number or a string")


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# Looked at before the union, whose own errors name its members as if they were fields.
TemplateOption = Annotated[bool | int | float | str, BeforeValidator(_simple)]


class ChatCompletionRequest(SamplingFields, ToolFields):
    """The body of `POST /v1/chat/completions`."""

    also_known = frozenset(_NOT_OFFERED) | _IGNORED
    operation: ClassVar[str] = "chat"
    """OpenTelemetry's name for what it asks for, as of the next class."""

    model: str = Field(min_length=1)
    messages: Listed[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The newer name of `max_tokens`; both may be sent when they agree."""
    logprobs: bool | None = None
    """Tell how likely each token was."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """And so many of the likeliest tokens in its place."""
    response_format: ResponseFormat | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: a conversation that does not fit loses its oldest turns (docs/context.md). Default: the model's."""
    reasoning_effort: ReasoningEffort | None = None
    """Passed to the chat template; without an effect where it does not know it."""
    chat_template_kwargs: dict[str, TemplateOption] | None = None
    """Options of the chat template, as far as the server allows clients to set them."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    """Accepted; every request is served in the tier of its key."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Accepted without an effect."""
    user: Name | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    prompt_cache_key: Name | None = None
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=_MOST_METADATA
    )

    @field_validator("messages", "metadata", "chat_template_kwargs", mode="before")
    @classmethod
    def _not_too_many(cls, value: Any, info: ValidationInfo) -> Any:
        # Before the entries are looked at: pydantic counts a dict only afterwards.
        most = limits_of(info).max_messages if info.field_name == "messages" else _MOST_METADATA
        if isinstance(value, list | dict) and len(value) > most:
            raise PydanticKnownError(
                "too_long", {"field_type": "List", "max_length": most, "actual_length": len(value)}
            )
        return value

    @cached_property
    def weight(self) -> int:
        """How much there is to render, tokenise and constrain, roughly in characters."""
        schemas = sum(len(orjson.dumps(one.parameters)) for one in self.offered if one.parameters)
        return schemas + sum(message.weight for message in self.messages)

    @property
    def output_tokens(self) -> int | None:
        """Most tokens asked for, for one choice."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def usual_tokens(self) -> int | None:
        """Most tokens to make where none are asked for; None: whatever the server's default is."""
        return None

    @property
    def asked_logprobs(self) -> int | None:
        """How many likely tokens to tell for each token; 0: only the token itself; None: nothing."""
        return (self.top_logprobs or 0) if self.logprobs else None


def check_agreement(request: ChatCompletionRequest, limits: RequestLimits) -> None:
    """Refuse what is only wrong in the light of another field, and what a text model cannot read.

    Raises:
        InvalidFieldError: two fields contradict each other, or a tool message answers no call.
        InvalidSchemaError: a JSON schema cannot be used.
        UnsupportedParameterError: a template option that clients may not set.
        UnsupportedValueError: a message carries a part that a text model cannot read, or a tool is no function.
    """
    if request.max_tokens not in (None, request.output_tokens):
        raise contradiction("max_tokens", "differs from 'max_completion_tokens'; send one of the two")
    if request.output_tokens is not None and (request.min_tokens or 0) > request.output_tokens:
        raise contradiction("min_tokens", f"is more than the {request.output_tokens} tokens that may be made")
    if request.top_logprobs and not request.logprobs:
        raise contradiction("top_logprobs", "is only allowed when 'logprobs' is true")
    check_sampling(request, limits)
    _check_format(request, limits)
    check_tools(request)
    for i, function in enumerate(tool.function for tool in request.tools or ()):
        if function is not None and function.parameters is not None:
            where = f"tools[{i}].function.parameters"
            check_schema(function.parameters, limits, param=where, name=function.name)
    check_template_options(request.chat_template_kwargs, limits)
    check_messages(request.messages)


def check_template_options(options: Mapping[str, Any] | None, limits: RequestLimits) -> None:
    """Refuse options of the chat template that clients may not set.

    Raises:
        UnsupportedParameterError: there is one.
    """
    for name in options or {}:
        if name not in limits.template_options:
            raise UnsupportedParameterError(
                f"Unsupported parameter: clients may not set 'chat_template_kwargs.{name[:64]}' on this server.",
                param=f"chat_template_kwargs.{name[:64]}",
            )


def check_offered(body: dict[str, Any]) -> None:
    """Refuse the parameters that others have and this server does not.

    Raises:
        UnsupportedParameterError: one of them asks for something.
    """
    for name, harmless in _NOT_OFFERED.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            instead = f" {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise UnsupportedParameterError(
                f"Unsupported parameter: '{name}' is not supported by this server.{instead}", param=name
            )


def _check_format(request: ChatCompletionRequest, limits: RequestLimits) -> None:
    asked = request.response_format
    if asked is None or asked.type == "text":
        return
    if request.structured_outputs is not None:
        raise contradiction("structured_outputs", "cannot be combined with 'response_format'")
    if asked.json_schema is not None and asked.json_schema.definition is not None:
        check_schema(asked.json_schema.definition, limits, param="response_format", name=asked.json_schema.name)


class CalledFunction(ResponseModel):
    """`arguments` is JSON, as the model wrote it: cut off where `finish_reason` is `length`."""

    name: str
    arguments: str


class CallToMake(ResponseModel):
    """A function that the model asks to have called."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(ResponseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(default=None, exclude_if=lambda text: text is None)
    tool_calls: list[CallToMake] | None = Field(default=None, exclude_if=lambda calls: calls is None)


class ChatChoice(ResponseModel):
    """One of the `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(ResponseModel):
    """The plain reply."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] | None = Field(default=None, exclude_if=lambda tier: tier is None)
    choices: list[ChatChoice]
    usage: Usage
