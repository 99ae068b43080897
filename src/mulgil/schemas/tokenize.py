"""`POST /v1/tokenize` and `POST /v1/detokenize`, as vLLM has them."""

from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from mulgil.schemas.base import Listed, RequestModel, ResponseModel, limits_of
from mulgil.schemas.chat import ChatCompletionRequest, ReasoningEffort, TemplateOption, check_template_options
from mulgil.schemas.messages import ChatMessage
from mulgil.schemas.tools import ToolFields

_LARGEST_ID = 2**31 - 1
MOST_TEXTS = 2**18
"""Most tokens of which the texts are told: more than nearly every context has, and each of them takes its time."""


class TokenizeRequest(ToolFields):
    """A text as it is, or a conversation through the chat template; exactly one of the two."""

    model: str | None = Field(default=None, min_length=1)
    """Default: the main model."""
    prompt: str | None = None
    messages: Listed[ChatMessage] | None = Field(default=None, min_length=1, max_length=2_048)
    reasoning_effort: ReasoningEffort | None = None
    """As in a chat request, like the next one: both may be part of what is rendered."""
    chat_template_kwargs: dict[str, TemplateOption] | None = Field(default=None, max_length=16)
    add_special_tokens: bool = True
    """Of a text: with the tokens that the model's tokenizer puts around one."""
    return_token_strs: bool = False
    """Tell the text of each token too."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _only_options_that_clients_may_set(cls, value: Any, info: ValidationInfo) -> Any:
        check_template_options(value, limits_of(info))
        return value

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("not_one", "expected exactly one of 'prompt' and 'messages'", {"field": "prompt"})
        return self

    @property
    def chat(self) -> ChatCompletionRequest | None:
        """The conversation as a chat request, whose prompt has the very same tokens."""
        if self.messages is None:
            return None
        return ChatCompletionRequest.model_construct(
            model=self.model or "",
            messages=self.messages,
            tools=self.tools,
            tool_choice=self.tool_choice,
            reasoning_effort=self.reasoning_effort,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class Tokenized(ResponseModel):
    """`count` tokens, of `max_model_len` that fit the model."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """Token ids of the model."""

    model: str | None = Field(default=None, min_length=1)
    tokens: Listed[Annotated[int, Field(ge=0, le=_LARGEST_ID)]]

    @field_validator("tokens", mode="before")
    @classmethod
    def _not_too_many(cls, value: Any) -> Any:
        # Before the entries are looked at: pydantic counts a list only afterwards.
        if isinstance(value, list) and len(value) > MOST_TEXTS:
            raise PydanticKnownError(
                "too_long", {"field_type": "List", "max_length": MOST_TEXTS, "actual_length": len(value)}
            )
        return value


class Detokenized(ResponseModel):
    """Their text."""

    prompt: str
