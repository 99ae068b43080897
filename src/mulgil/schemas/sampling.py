"""The fields that chat and completions have in common: sampling, stopping, streaming, the answer's form."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from mulgil.errors import InvalidFieldError, InvalidSchemaError
from mulgil.pacing import Pacing
from mulgil.schemas.base import Listed, RequestLimits, RequestModel, limits_of
from mulgil.schemas.structured import StructuredOutputs, check_schema


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopSequences = Annotated[
    Listed[Annotated[str, Field(min_length=1, max_length=1_024)]],
    Field(max_length=4),
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]


Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
_MOST_BIASES = 1_024


class ChunkInterval(RequestModel):
    """A piece every so many milliseconds, at most."""

    interval_ms: int = Field(ge=1, le=10_000)


def _chunking_kind(value: Any) -> str | None:
    return "<unit>" if isinstance(value, str) else "<interval>" if isinstance(value, dict) else None


Chunking = Annotated[
    Annotated[Literal["token", "word", "sentence"], Tag("<unit>")] | Annotated[ChunkInterval, Tag("<interval>")],
    Discriminator(
        _chunking_kind,
        custom_error_type="invalid_content",
        custom_error_message="expected 'token', 'word', 'sentence' or {'interval_ms': N}",
    ),
]


class StreamOptions(RequestModel):
    """How a stream is sent."""

    include_usage: bool | None = None
    """Send a last chunk with empty `choices` and the whole `usage`."""
    continuous_usage_stats: bool | None = None
    """vLLM's: every chunk has the `usage` so far. Some clients add up what they see; ask only if yours does not."""
    include_obfuscation: bool | None = None
    """Accepted; nothing is obfuscated."""
    resumable: bool | None = None
    """The answer goes on without a reader for a while, and can be read again from anywhere (docs/streams.md)."""
    chunking: Chunking | None = None
    """How much is sent at a time: `token`, `word`, `sentence`, or `{"interval_ms": N}`."""


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

    structured_outputs: StructuredOutputs | None = None
    """vLLM's: the answer keeps to a JSON schema, a regular expression, a list of choices or a grammar."""

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
    def pacing(self) -> Pacing | None:
        """How much is sent at a time; None where the request does not say."""
        asked = self.stream_options.chunking if self.stream_options is not None else None
        if isinstance(asked, ChunkInterval):
            return Pacing(interval=asked.interval_ms / 1_000)
        return Pacing(asked) if asked is not None else None

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return self.n or 1


def check_sampling(request: SamplingFields, limits: RequestLimits) -> None:
    """Refuse what is only wrong in the light of another field, and constraints that are too large.

    Raises:
        InvalidFieldError: two fields contradict each other.
        InvalidSchemaError: `structured_outputs` cannot be used.
    """
    if request.stream_options is not None and not request.stream:
        raise contradiction("stream_options", "is only allowed when 'stream' is true")
    if request.choices > 1 and request.temperature == 0:
        raise contradiction("n", "must be 1 when 'temperature' is 0, since every choice would be the same")
    if request.structured_outputs is None:
        return
    if request.structured_outputs.schema_ is not None:
        check_schema(request.structured_outputs.schema_, limits, param="structured_outputs.json")
    elif (size := request.structured_outputs.size) > limits.max_schema_bytes:
        raise InvalidSchemaError(
            f"it has {size} bytes, and {limits.max_schema_bytes} are allowed", param="structured_outputs"
        )


def contradiction(param: str, reason: str) -> InvalidFieldError:
    """The error for a field that is wrong beside others."""
    return InvalidFieldError(f"Invalid '{param}': {reason}.", param=param, code="invalid_value")
