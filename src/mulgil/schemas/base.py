"""What every wire type shares, and the fields that chat and completions have in common."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of a request that the operator sets; passed to validation as its context.

    Attributes:
        max_output_tokens: largest `max_tokens` of one choice, in tokens.
        max_choices: largest `n`.
        max_messages: largest number of messages.
    """

    max_output_tokens: int = 32_768
    max_choices: int = 16
    max_messages: int = 2_048


class RequestModel(BaseModel):
    """Strict: "2" is not 2, and an unknown field is left out, not an error (see `unknown_fields`)."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    also_known: ClassVar[frozenset[str]] = frozenset()
    """Fields of OpenAI's that are not read here, yet known: no reason for `unknown_fields=reject`."""

    @classmethod
    def known_fields(cls) -> frozenset[str]:
        """The fields that somebody knows."""
        return cls.also_known | cls.model_fields.keys()


class ResponseModel(BaseModel):
    """A response body; built by us, so never coerced and never extended."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T")
# A list ends at its first wrong entry. Without that, a body of 2 MB in which every entry of a list is
# wrong makes a million errors, of which one is shown, and stops the event loop for seconds.
Listed = Annotated[list[T], Field(fail_fast=True)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopSequences = Annotated[
    Listed[Annotated[str, Field(min_length=1, max_length=1_024)]],
    Field(max_length=4),
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]


Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
_MOST_BIASES = 1_024


class StreamOptions(RequestModel):
    """How a stream is sent."""

    include_usage: bool | None = None
    """Send a last chunk with empty `choices` and the whole `usage`."""


class SamplingFields(RequestModel):
    """The sampling parameters of chat and completions. `None` means: the model's own default."""

    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens to make for one choice; see `max_output_tokens` for the server's own bound."""
    n: int | None = Field(default=None, ge=1)
    """How many answers to make for one prompt."""
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: StopSequences | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias] | None = None
    """Added to the score of a token, by its id in the model's vocabulary."""

    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    """vLLM's, as are the next five. Only so many of the likeliest tokens; 0 or -1 for all."""
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2, allow_inf_nan=False)
    min_tokens: int | None = Field(default=None, ge=0)
    """No end before so many tokens."""
    ignore_eos: bool | None = None
    """Go on where the model would end."""
    stop_token_ids: Listed[Annotated[int, Field(ge=0, le=2**31 - 1)]] | None = Field(default=None, max_length=64)

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @field_validator("max_tokens", "max_completion_tokens", "n", check_fields=False)
    @classmethod
    def _within_the_servers_bounds(cls, value: int | None, info: ValidationInfo) -> int | None:
        limits = limits_of(info)
        most = limits.max_choices if info.field_name == "n" else limits.max_output_tokens
        if value is not None and value > most:
            raise PydanticKnownError("less_than_equal", {"le": most})
        return value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _not_too_many_biases(cls, value: Any) -> Any:
        # Before the entries are looked at: pydantic counts a dict only afterwards.
        if isinstance(value, dict) and len(value) > _MOST_BIASES:
            raise PydanticKnownError(
                "too_long", {"field_type": "Dictionary", "max_length": _MOST_BIASES, "actual_length": len(value)}
            )
        return value

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return self.n or 1


def limits_of(info: ValidationInfo) -> RequestLimits:
    """The limits this validation runs under; the defaults where the caller gave none."""
    return info.context if isinstance(info.context, RequestLimits) else RequestLimits()
