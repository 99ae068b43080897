"""`POST /v1/chat/completions`: request, response, and the parts of a message."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from mulgil.errors import InvalidFieldError, UnsupportedParameterError, UnsupportedValueError
from mulgil.schemas.base import Listed, RequestModel, ResponseModel, SamplingFields, limits_of

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]

_MOST_METADATA = 16

# Asked for and not done is worse than refused: each of these changes what the answer means.
# The values listed ask for nothing, so they are accepted.
_NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "top_logprobs": (0,),
    "web_search_options": (),
}


# Accepted, and without an effect on the answer that its reader could miss.
_IGNORED = frozenset(
    (
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "verbosity",
    )
)


def _missing(field: str) -> PydanticCustomError:
    """The error for *field*, whose absence only the fields beside it make wrong (see `api.body.field_error`)."""
    return PydanticCustomError("missing_beside_others", "missing '{field}'", {"field": field})


class ContentPart(RequestModel):
    """One part of a message's content. Only `text` and `refusal` parts can be served."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _has_its_text(self) -> Self:
        if self.type in ("text", "refusal") and getattr(self, self.type) is None:
            raise _missing(self.type)
        return self


class ToolCallFunction(RequestModel):
    """What an earlier answer asked to have called."""

    name: str
    arguments: str


class ToolCall(RequestModel):
    """A call in an assistant message of the history."""

    id: str
    type: Literal["function"] = "function"
    function: ToolCallFunction


def _content_kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<parts>" if isinstance(value, list) else None


# Tags in angle brackets do not show up in the path of a field error (`mulgil.api.body`).
Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Listed[ContentPart], Field(min_length=1), Tag("<parts>")],
    Discriminator(
        _content_kind,
        custom_error_type="invalid_content",
        custom_error_message="expected a string or an array of content parts",
    ),
]


class ChatMessage(RequestModel):
    """One message of the conversation."""

    role: Role
    content: Content | None = None
    name: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.role == "tool" and self.tool_call_id is None:
            raise _missing("tool_call_id")
        spoken = self.content is not None or self.refusal is not None
        if not spoken and not (self.role == "assistant" and self.tool_calls):
            raise _missing("content")
        return self

    @property
    def text(self) -> str | None:
        """The content as one string: the parts run together, nothing between them."""
        if self.content is None or isinstance(self.content, str):
            return self.content if self.content is not None else self.refusal
        return "".join((part.text if part.type == "text" else part.refusal) or "" for part in self.content)


class ChatCompletionRequest(SamplingFields):
    """The body of `POST /v1/chat/completions`."""

    also_known = frozenset(_NOT_OFFERED) | _IGNORED

    model: str = Field(min_length=1)
    messages: Listed[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The newer name of `max_tokens`; both may be sent when they agree."""
    user: str | None = Field(default=None, max_length=512)
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=_MOST_METADATA
    )

    @field_validator("messages", "metadata", mode="before")
    @classmethod
    def _not_too_many(cls, value: Any, info: ValidationInfo) -> Any:
        # Before the entries are looked at: pydantic counts a dict only afterwards.
        most = limits_of(info).max_messages if info.field_name == "messages" else _MOST_METADATA
        if isinstance(value, list | dict) and len(value) > most:
            raise PydanticKnownError(
                "too_long", {"field_type": "List", "max_length": most, "actual_length": len(value)}
            )
        return value

    @property
    def output_tokens(self) -> int | None:
        """Most tokens asked for, for one choice."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def check_agreement(request: ChatCompletionRequest) -> None:
    """Refuse what is only wrong in the light of another field.

    Raises:
        InvalidFieldError: two fields contradict each other, or a tool message answers no call.
        UnsupportedValueError: a message carries a part that a text model cannot read.
    """
    if request.max_tokens not in (None, request.output_tokens):
        raise _contradiction("max_tokens", "differs from 'max_completion_tokens'; send one of the two")
    if request.stream_options is not None and not request.stream:
        raise _contradiction("stream_options", "is only allowed when 'stream' is true")
    if request.output_tokens is not None and (request.min_tokens or 0) > request.output_tokens:
        raise _contradiction("min_tokens", f"is more than the {request.output_tokens} tokens that may be made")
    if request.choices > 1 and request.temperature == 0:
        raise _contradiction("n", "must be 1 when 'temperature' is 0, since every choice would be the same")
    _check_messages(request.messages)


def check_offered(body: dict[str, Any]) -> None:
    """Refuse the OpenAI parameters that this server does not have.

    Raises:
        UnsupportedParameterError: one of them asks for something.
    """
    for name, harmless in _NOT_OFFERED.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise UnsupportedParameterError(
                f"Unsupported parameter: '{name}' is not supported by this server.", param=name
            )


def _check_messages(messages: list[ChatMessage]) -> None:
    called: set[str] = set()
    for i, message in enumerate(messages):
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                if part.type not in ("text", "refusal"):
                    raise UnsupportedValueError(
                        f"Unsupported value: this model reads text only, not '{part.type}' parts.",
                        param=f"messages[{i}].content[{j}].type",
                    )
        called.update(call.id for call in message.tool_calls or ())
        if message.role == "tool" and message.tool_call_id not in called:
            raise _contradiction(
                f"messages[{i}].tool_call_id", "must be the id of a call in an earlier assistant message"
            )


def _contradiction(param: str, reason: str) -> InvalidFieldError:
    return InvalidFieldError(f"Invalid '{param}': {reason}.", param=param, code="invalid_value")


class PromptTokensDetails(ResponseModel):
    """`cached_tokens` of the prompt came out of the engine's prefix cache."""

    cached_tokens: int


class Usage(ResponseModel):
    """Token counts from the engine's ids. `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AssistantMessage(ResponseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None


class ChatChoice(ResponseModel):
    """One of the `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(ResponseModel):
    """The plain reply."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
