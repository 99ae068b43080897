"""Token counts and token probabilities, as responses carry them."""

from pydantic import Field

from mulgil.schemas.base import ResponseModel


class PromptTokensDetails(ResponseModel):
    """`cached_tokens` of the prompt came out of the engine's prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(ResponseModel):
    """`reasoning_tokens` of the answer were spent on reasoning."""

    reasoning_tokens: int


class Usage(ResponseModel):
    """Token counts from the engine's ids. `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = Field(
        default=None, exclude_if=lambda details: details is None
    )


class TopLogprob(ResponseModel):
    """A token that was likely in a place. `bytes` are the token's in UTF-8."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token that was made, and the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(ResponseModel):
    """Of every token of the text."""

    content: list[TokenLogprob]
    refusal: None = None
