"""A value that fits a JSON schema, always the same for the same schema and salt."""

import hashlib
import math
from typing import Any

from mulgil.engine.simulated_tokens import WORDS

_DEEPEST = 24
_DEEP = 4
"""From this level on only what is required is made, so that a schema that holds itself comes to an end."""
_MOST_VALUES = 1_000
_LARGEST = 2**53


def made_up_value(schema: Any, salt: str) -> Any:
    """A value for *schema*, as good as can be made without solving it.

    Understands type, properties, items, enum, const, anyOf, oneOf, allOf, local `$ref` and simple bounds. What
    makes no sense in a schema is passed over.
    """
    return _Maker(schema).value(schema, salt, 0)


class _Maker:
    """Makes one value, of at most so many parts."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST_VALUES

    def value(self, schema: Any, salt: str, depth: int) -> Any:
        self._left -= 1
        for _ in range(_DEEPEST):  # through references and choices to a schema with a type
            if not isinstance(schema, dict):
                return None
            parts = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if isinstance(reference := schema.get("$ref"), str):
                schema = _resolved(reference, self._root)
            elif isinstance(parts, list):
                schema = parts[0]
            else:
                break
        if depth > _DEEPEST or self._left < 0 or not isinstance(schema, dict):
            return None
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(options, list) and options:
            return options[_number(salt) % len(options)]
        return self._typed_value(schema, salt, depth)

    def _typed_value(self, schema: dict[str, Any], salt: str, depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = kind[0] if kind else "null"
        if kind == "object":
            return {
                name: self.value(part, f"{salt}.{name}", depth + 1) for name, part in _wanted(schema, depth).items()
            }
        if kind == "array":
            count = min(math.ceil(_bound(schema, "minItems", 1)), 16)
            return [self.value(schema.get("items", {}), f"{salt}.{index}", depth + 1) for index in range(count)]
        return _plain_value(kind, schema, salt)


def _wanted(schema: dict[str, Any], depth: int) -> dict[str, Any]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return {}
    if depth < _DEEP:
        return properties
    return {name: part for name, part in properties.items() if isinstance(required, list) and name in required}


def _plain_value(kind: Any, schema: dict[str, Any], salt: str) -> Any:
    if kind in ("integer", "number"):
        low = _bound(schema, "minimum", min(0, _bound(schema, "maximum", 0)))
        high = max(_bound(schema, "maximum", low + 100), low)
        value = low + _number(salt) % (int(high - low) + 1)
        return math.ceil(value) if kind == "integer" else float(value)
    if kind == "boolean":
        return _number(salt) % 2 == 0
    if kind == "null":
        return None
    word = WORDS[_number(salt) % len(WORDS)]
    shortest = min(max(math.ceil(_bound(schema, "minLength", 0)), 0), 1_024)
    longest = max(int(_bound(schema, "maxLength", max(shortest, len(word)))), shortest)
    return (word * (shortest // len(word) + 1))[:longest]


def _bound(schema: dict[str, Any], name: str, otherwise: float) -> float:
    """The number that bounds a value; *otherwise* where the schema has none, or none that is a number."""
    bound = schema.get(name)
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        return otherwise
    return max(-_LARGEST, min(bound, _LARGEST))


def _resolved(reference: str, root: Any) -> Any:
    found = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _number(salt: str) -> int:
    return int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=4).digest())
