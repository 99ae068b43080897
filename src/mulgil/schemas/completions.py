"""`POST /v1/completions`: request and response."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from mulgil.errors import UnsupportedParameterError
from mulgil.schemas.base import RequestLimits, ResponseModel, limits_of
from mulgil.schemas.sampling import SamplingFields, check_sampling, contradiction
from mulgil.schemas.usage import Usage

_LARGEST_ID = 2**31 - 1
_USUAL_TOKENS = 16  # OpenAI's, for this endpoint
# No served model can write towards a suffix; the others are vLLM's.
_NOT_OFFERED = ("suffix", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search")


class CompletionRequest(SamplingFields):
    """The body of `POST /v1/completions`."""

    also_known = frozenset(_NOT_OFFERED)
    operation: ClassVar[str] = "text_completion"

    model: str = Field(min_length=1)
    prompt: Any = Field(json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array"}]})
    """A text, an array of texts, token ids, or an array of arrays of token ids."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Most tokens to make for one choice, 16 by default. 0 only with `echo`, to have a prompt scored: the engine cannot
    make nothing, so one token is made and paid for, and not shown."""
    echo: bool | None = None
    """The text begins with the prompt."""
    logprobs: int | None = Field(default=None, ge=0, le=20)
    """Tell how likely each token was, and so many of the likeliest in its place."""
    best_of: int | None = Field(default=None, ge=1)
    """Make so many choices for each prompt and answer with the `n` likeliest. All of them are paid for."""
    user: Annotated[str, Field(max_length=512)] | None = None

    @field_validator("best_of")
    @classmethod
    def _best_of_within_bounds(cls, value: int | None, info: ValidationInfo) -> int | None:
        most = limits_of(info).max_choices
        if value is not None and value > most:
            raise PydanticKnownError("less_than_equal", {"le": most})
        return value

    @field_validator("prompt", mode="before")
    @classmethod
    def _is_a_prompt(cls, value: Any, info: ValidationInfo) -> Any:
        most = limits_of(info).max_prompts
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise PydanticCustomError("bad_prompt", "expected a string, or an array of strings or of token ids")
        if isinstance(value[0], str | list) and len(value) > most:
            raise PydanticKnownError(
                "too_long", {"field_type": "List", "max_length": most, "actual_length": len(value)}
            )
        if not (_are_texts(value) or _are_ids(value) or all(_are_ids(entry) for entry in value)):
            raise PydanticCustomError(
                "bad_prompt",
                "expected all its entries to be strings, token ids, or arrays of token ids that are not empty",
            )
        return value

    @property
    def prompts(self) -> list[str | list[int]]:
        """One text or list of token ids for each prompt."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    @cached_property
    def weight(self) -> int:
        """How much there is to tokenise, in characters, and in token ids that are given."""
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def output_tokens(self) -> int | None:
        """Most tokens asked for, for one choice."""
        return self.max_tokens

    @property
    def usual_tokens(self) -> int | None:
        """Most tokens to make where none are asked for and no one else says less."""
        return _USUAL_TOKENS

    @property
    def choices(self) -> int:
        """How many choices are made for each prompt."""
        return max(self.n or 1, self.best_of or 1)

    @property
    def asked_logprobs(self) -> int | None:
        """How many likely tokens to tell for each token; 0: only the token itself; None: nothing."""
        ranked = self.best_of is not None and self.best_of > (self.n or 1)
        return 0 if self.logprobs is None and ranked else self.logprobs


def _are_texts(value: list[Any]) -> bool:
    return all(isinstance(entry, str) for entry in value)


def _are_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(entry) is int and 0 <= entry <= _LARGEST_ID for entry in value)
    )


def check_agreement(request: CompletionRequest, limits: RequestLimits) -> None:
    """Refuse what is only wrong in the light of another field.

    Raises:
        InvalidFieldError: two fields contradict each other.
        InvalidSchemaError: `structured_outputs` cannot be used.
    """
    if request.output_tokens == 0 and not request.echo:
        raise contradiction("max_tokens", "may only be 0 when 'echo' is true")
    if request.output_tokens and (request.min_tokens or 0) > request.output_tokens:
        raise contradiction("min_tokens", f"is more than the {request.output_tokens} tokens that may be made")
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise contradiction("best_of", f"must be at least 'n', which is {request.n}")
    if request.echo and request.best_of is not None and request.best_of > (request.n or 1):
        raise contradiction("best_of", "must be 'n' when 'echo' is true")
    if request.stream and request.best_of is not None and request.best_of > (request.n or 1):
        raise contradiction("best_of", "must be 'n' when 'stream' is true")
    if request.stream_options is not None and request.stream_options.resumable:
        raise UnsupportedParameterError(
            "Unsupported parameter: only chats are resumable.", param="stream_options.resumable"
        )
    check_sampling(request, limits)


def check_offered(body: dict[str, Any]) -> None:
    """Refuse the parameters that others have and this server does not.

    Raises:
        UnsupportedParameterError: one of them asks for something.
    """
    for name in _NOT_OFFERED:
        if body.get(name) not in (None, "", False):
            raise UnsupportedParameterError(
                f"Unsupported parameter: '{name}' is not supported by this server.", param=name
            )


class CompletionLogprobs(ResponseModel):
    """One entry for each token of the text; the first token of an echoed prompt has no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    """Choice `index % n` of prompt `index // n`."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length", "content_filter"]


class Completion(ResponseModel):
    """The plain reply."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
