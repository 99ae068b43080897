"""`POST /v1/tokenize` and `POST /v1/detokenize`, as vLLM has them."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from mulgil.schemas.base import Listed, RequestModel, ResponseModel
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.messages import ChatMessage
from mulgil.schemas.tools import ToolFields

_LARGEST_ID = 2**31 - 1


class TokenizeRequest(ToolFields):
    """A text as it is, or a conversation through the chat template; exactly one of the two."""

    model: str | None = Field(default=None, min_length=1)
    """Default: the main model."""
    prompt: str | None = None
    messages: Listed[ChatMessage] | None = Field(default=None, min_length=1, max_length=2_048)
    add_special_tokens: bool = True
    """Of a text: with the tokens that the model's tokenizer puts around one."""
    return_token_strs: bool = False
    """Tell the text of each token too."""

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
            model=self.model or "", messages=self.messages, tools=self.tools, tool_choice=self.tool_choice
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


class Detokenized(ResponseModel):
    """Their text."""

    prompt: str
