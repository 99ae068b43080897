"""The messages of a conversation, as a chat request carries them."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from mulgil.errors import InvalidFieldError, UnsupportedValueError
from mulgil.schemas.base import Listed, RequestModel, missing

_OF_ITSELF = 16  # what a message, a part or a call costs, in characters, even if it is empty

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ContentPart(RequestModel):
    """One part of a message's content. Only `text` and `refusal` parts can be served."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _has_its_text(self) -> Self:
        if self.type in ("text", "refusal") and getattr(self, self.type) is None:
            raise missing(self.type)
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
    reasoning_content: str | None = None
    """What the assistant thought; some clients send it back, and some templates use it."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.role == "tool" and self.tool_call_id is None:
            raise missing("tool_call_id")
        spoken = self.content is not None or self.refusal is not None
        if not spoken and not (self.role == "assistant" and self.tool_calls):
            raise missing("content")
        return self

    @property
    def text(self) -> str | None:
        """The content as one string: the parts run together, nothing between them."""
        if self.content is None or isinstance(self.content, str):
            return self.content if self.content is not None else self.refusal
        return "".join((part.text if part.type == "text" else part.refusal) or "" for part in self.content)

    @property
    def weight(self) -> int:
        """How much there is to render and tokenise, roughly in characters."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content or ()]
        calls = [call.function.arguments for call in self.tool_calls or ()]
        texts = (*parts, self.refusal, self.reasoning_content, *calls)
        return sum(_OF_ITSELF + len(text or "") for text in texts)


def check_messages(messages: list[ChatMessage]) -> None:
    """Refuse what a text model cannot read, and tool results that answer no call.

    Raises:
        UnsupportedValueError: a part is neither text nor refusal.
        InvalidFieldError: `tool_call_id` is not that of an earlier call.
    """
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
            param = f"messages[{i}].tool_call_id"
            raise InvalidFieldError(
                f"Invalid '{param}': must be the id of a call in an earlier assistant message.",
                param=param,
                code="invalid_value",
            )
