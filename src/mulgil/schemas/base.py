"""What every wire type shares."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of a request that the operator sets; passed to validation as its context.

    Attributes:
        max_output_tokens: largest `max_tokens` of one choice, in tokens.
        max_choices: largest `n`.
        max_messages: largest number of messages.
        max_embedding_inputs: largest number of texts to embed.
        max_prompts: largest number of prompts in one completion request.
        max_tools: largest number of tools.
        max_schema_bytes: largest JSON schema, regular expression or grammar.
        max_schema_depth: deepest nesting of a JSON schema.
        template_options: keys of `chat_template_kwargs` that a client may set.
    """

    max_output_tokens: int = 32_768
    max_choices: int = 16
    max_messages: int = 2_048
    max_embedding_inputs: int = 2_048
    max_prompts: int = 128
    max_tools: int = 128
    max_schema_bytes: int = 65_536
    max_schema_depth: int = 32
    template_options: tuple[str, ...] = ("enable_thinking", "thinking", "reasoning_effort")


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


def missing(field: str) -> PydanticCustomError:
    """The error for *field*, whose absence only the fields beside it make wrong (see `api.body.field_error`)."""
    return PydanticCustomError("missing_beside_others", "missing '{field}'", {"field": field})


def limits_of(info: ValidationInfo) -> RequestLimits:
    """The limits this validation runs under; the defaults where the caller gave none."""
    return info.context if isinstance(info.context, RequestLimits) else RequestLimits()
