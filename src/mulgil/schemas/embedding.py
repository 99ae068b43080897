"""`POST /v1/embeddings`: request and response."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from mulgil.schemas.base import Listed, RequestModel, ResponseModel, limits_of

# The largest integer that an engine can take; whether the vocabulary has it is the engine's to say.
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
# A step of Python after each list: pydantic looks at a million numbers without letting anything else run.
TokenIds = Annotated[Listed[TokenId], Field(min_length=1), AfterValidator(lambda ids: ids)]
Text = Annotated[str, Field(min_length=1)]

_ONE_TEXT, _TEXTS, _ONE_LIST, _LISTS = "<text>", "<texts>", "<ids>", "<lists>"


def _input_kind(value: Any) -> str | None:
    """Decided by the first entry alone; the entries after it are held to the same."""
    if isinstance(value, str):
        return _ONE_TEXT
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    if isinstance(first, list):
        return _LISTS
    return _ONE_LIST if isinstance(first, int) and not isinstance(first, bool) else _TEXTS


# Tags in angle brackets do not show up in the path of a field error (`mulgil.api.body`).
Input = Annotated[
    Annotated[Text, Tag(_ONE_TEXT)]
    | Annotated[Listed[Text], Field(min_length=1), Tag(_TEXTS)]
    | Annotated[TokenIds, Tag(_ONE_LIST)]
    | Annotated[Listed[TokenIds], Field(min_length=1), Tag(_LISTS)],
    Discriminator(
        _input_kind,
        custom_error_type="invalid_content",
        custom_error_message="expected a string, an array of strings, or arrays of token ids",
    ),
]


class EmbeddingRequest(RequestModel):
    """The body of `POST /v1/embeddings`."""

    model: str = Field(min_length=1)
    input: Input
    """One text or several; or the token ids of one or of several, in this model's own vocabulary."""
    encoding_format: Literal["float", "base64"] | None = None
    """`float` (the default), or `base64`: the same numbers as little-endian 32-bit floats."""
    dimensions: int | None = Field(default=None, ge=1)
    """Shorter vectors, of models that are made for it."""
    user: str | None = Field(default=None, max_length=512)

    @field_validator("input", mode="before")
    @classmethod
    def _not_too_many(cls, value: Any, info: ValidationInfo) -> Any:
        # Before the entries are looked at: pydantic counts a list only afterwards.
        most = limits_of(info).max_embedding_inputs
        if isinstance(value, list) and len(value) > most and _input_kind(value) != _ONE_LIST:
            raise PydanticKnownError(
                "too_long", {"field_type": "List", "max_length": most, "actual_length": len(value)}
            )
        return value

    @property
    def inputs(self) -> Sequence[str | list[int]]:
        """The inputs one by one, in order: all of them texts, or all of them token ids."""
        if isinstance(self.input, str):
            return [self.input]
        several: list[Any] = self.input  # which of the union's lists it is, its first entry tells
        return [several] if isinstance(several[0], int) else several

    def path(self, index: int) -> str:
        """How an error names input *index*: as `input[3]`, or as `input` where there is one only."""
        single = isinstance(self.input, str) or isinstance(self.input[0], int)
        return "input" if single else f"input[{index}]"


class Embedding(ResponseModel):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(ResponseModel):
    """Tokens of all inputs together; nothing else is counted."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(ResponseModel):
    """The reply, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
