"""What an answer must look like: `response_format`, and vLLM's `structured_outputs`."""

from typing import Any, Literal, Self

import orjson
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mulgil.errors import InvalidSchemaError
from mulgil.schemas.base import Listed, RequestLimits, RequestModel, missing

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class JSONSchemaFormat(RequestModel):
    """A JSON schema by name. The answer keeps to it, whatever `strict` says."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")
    description: str | None = None
    definition: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise missing("json_schema")
        return self


class StructuredOutputs(RequestModel):
    """vLLM's way; exactly one of the four."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True
    )  # a constraint that is silently dropped is worse than none

    schema_: dict[str, Any] | None = Field(default=None, alias="json")
    """A JSON schema."""
    regex: str | None = Field(default=None, min_length=1)
    choice: Listed[str] | None = Field(default=None, min_length=1, max_length=1_024)
    """One of these texts."""
    grammar: str | None = Field(default=None, min_length=1)
    """A grammar in EBNF."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [self.schema_, self.regex, self.choice, self.grammar]
        if sum(value is not None for value in given) != 1:
            raise PydanticCustomError("not_one", "expected exactly one of 'json', 'regex', 'choice' and 'grammar'")
        return self

    @property
    def size(self) -> int:
        """Bytes of the constraint, as far as it is not a schema."""
        return len((self.regex or self.grammar or "".join(self.choice or ())).encode())


def check_schema(schema: dict[str, Any], limits: RequestLimits, *, param: str, name: str | None = None) -> None:
    """Refuse a JSON schema that is too large, too deep, or refers to something outside itself.

    Raises:
        InvalidSchemaError: it is.
    """

    def refused(reason: str) -> InvalidSchemaError:
        return InvalidSchemaError(reason, param=param, name=name)

    too_deep = refused(f"it is nested more than {limits.max_schema_depth} levels deep")
    try:
        size = len(orjson.dumps(schema))
    except orjson.JSONEncodeError:  # writes fewer levels than it reads
        raise too_deep from None
    if size > limits.max_schema_bytes:
        raise refused(f"it has {size} bytes, and {limits.max_schema_bytes} are allowed")
    level: list[Any] = [schema]
    for _ in range(limits.max_schema_depth):
        for node in level:
            for keyword in _REFERENCES if isinstance(node, dict) else ():
                target = node.get(keyword)
                # Nothing is fetched on a client's word; an engine would take an unknown one for "anything".
                if isinstance(target, str) and not target.startswith("#"):
                    raise refused(f"'{keyword}' may only point into the schema itself, with '#/…'")
        level = [
            inner
            for node in level
            for inner in (node.values() if isinstance(node, dict) else node)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise too_deep
