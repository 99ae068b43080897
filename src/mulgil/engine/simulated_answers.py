"""What the simulated engine says: scripts, made-up words, calls and JSON, all by the prompt and the adapter alone."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from mulgil.engine.base import TextRequest
from mulgil.engine.lora import Adapter
from mulgil.engine.simulated_json import made_up_value
from mulgil.engine.simulated_tokens import WORDS
from mulgil.engine.snapshot import StopCause
from mulgil.errors import UnsupportedParameterError
from mulgil.schemas.chat import ChatCompletionRequest

Kind = Literal["text", "reasoning"] | int
"""Where a token goes: into the text, the reasoning, or the arguments of the call of this index."""


class ScriptedCall(BaseModel):
    """A function call that the answer ends with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Of the function."""
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    """As an object, or as text that may be no JSON at all."""


class Script(BaseModel):
    """What one request does; what is not given is the engine's default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int | None = Field(default=None, ge=0, le=20_000)
    """Length of the answer; without it 8 to 64 by the prompt. Reaching it ends with `finish`."""
    text: str | None = None
    """The answer, word for word, instead of made-up words."""
    reasoning: str | None = None
    """What the model thinks first, word for word."""
    tool_calls: tuple[ScriptedCall, ...] | None = None
    """The calls that the answer ends with; without `text` they are all of it."""
    ttft: float | None = Field(default=None, ge=0, le=3_600)
    """Seconds before the first token."""
    gap: float | None = Field(default=None, ge=0, le=3_600)
    """Seconds between tokens."""
    finish: StopCause = "stop"
    """The finish reason."""
    fail_at: int | None = Field(default=None, ge=0)
    """Fail this request instead of making this token; 0 refuses it before it is accepted."""
    hang_at: int | None = Field(default=None, ge=0)
    """Make no token from this one on, until aborted."""
    die_at: int | None = Field(default=None, ge=0)
    """The whole engine dies instead of making this token."""
    split_characters: bool = False
    """Every token is one byte of UTF-8, so that most tokens of most scripts are part of a character."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, as it will be said.

    Attributes:
        pieces: the tokens in order, each with its place.
        calls: id and name of each call.
        finish: the finish reason after the last token.
    """

    pieces: tuple[tuple[Kind, bytes], ...]
    calls: tuple[tuple[str, str], ...] = ()
    finish: StopCause = "stop"


def answer(script: Script, request: TextRequest, prompt: list[int], index: int, adapter: Adapter | None) -> Answer:
    """The answer of the model, or of its *adapter*, to *prompt* for choice *index*.

    Raises:
        UnsupportedParameterError: it would have to follow a regular expression or a grammar.
    """
    salt = f"{request.seed}/{index}" + (f"/{adapter.version}" if adapter else "")
    calls = _calls(script, request, salt)
    text = script.text
    if text is None:
        text = "" if calls else _constrained(script, request, salt)
    if text is None:
        text = _made_up(script, prompt, salt)
    said = _cut(tuple(_pieces(script, text)), request.stop or ())
    if script.tokens is not None:
        said = said[: script.tokens]
    thought = _pieces(script, script.reasoning or "")
    if isinstance(request, ChatCompletionRequest) and request.parallel_tool_calls is False:
        calls = calls[:1]
    pieces: list[tuple[Kind, bytes]] = [("reasoning", piece) for piece in thought]
    pieces += [("text", piece) for piece in said]
    for number, (_, _, arguments) in enumerate(calls):
        pieces += [(number, piece) for piece in _pieces(script, arguments) or [b""]]
    finish = script.finish
    if calls and finish == "stop" and not isinstance(getattr(request, "must_call", None), str):
        finish = "tool_calls"
    return Answer(tuple(pieces), tuple((one, name) for one, name, _ in calls), finish)


def _calls(script: Script, request: TextRequest, salt: str) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call."""
    if not isinstance(request, ChatCompletionRequest):
        return []
    calls = [
        (call.name, call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode())
        for call in script.tool_calls or ()
    ]
    must = request.must_call
    if not calls and must:
        wanted = next(one for one in request.offered if one.name == must or must is True)
        calls = [(wanted.name, orjson.dumps(made_up_value(wanted.parameters or {"type": "object"}, salt)).decode())]
    return [(f"call_{secrets.token_hex(12)}", name, arguments) for name, arguments in calls]


def _constrained(script: Script, request: TextRequest, salt: str) -> str | None:
    """The answer that keeps to the form that the request asks for; None where it asks for none."""
    schema: dict[str, Any] | None = None
    asked = request.structured_outputs
    if asked is not None:
        if asked.choice:
            return asked.choice[_seed(salt) % len(asked.choice)]
        if asked.schema_ is None:
            raise UnsupportedParameterError(
                "Unsupported parameter: the simulated engine follows no regular expressions and no grammars.",
                param="structured_outputs",
            )
        schema = asked.schema_
    elif isinstance(request, ChatCompletionRequest) and request.response_format is not None:
        form = request.response_format
        if form.type == "text":
            return None
        schema = (form.json_schema.definition if form.json_schema else None) or {
            "type": "object",
            "properties": {"answer": {"type": "string"}},
        }
    return None if schema is None else orjson.dumps(made_up_value(schema, salt)).decode()


def _pieces(script: Script, text: str) -> list[bytes]:
    if script.split_characters:
        return [bytes([byte]) for byte in text.encode()]
    return [piece.encode() for piece in re.findall(r"\s*\S+\s*$|\s*\S+|\s+$", text)]


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _made_up(script: Script, prompt: list[int], salt: str) -> str:
    seed = _seed(f"{prompt}{salt}")
    count = script.tokens if script.tokens is not None else 8 + seed % 57
    chosen = []
    for _ in range(count):
        # A linear congruential generator (Knuth's MMIX constants): the same words on every machine.
        seed = (seed * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        chosen.append(WORDS[(seed >> 33) % len(WORDS)])
    return " ".join(chosen)


def _cut(said: tuple[bytes, ...], stops: Sequence[str]) -> tuple[bytes, ...]:
    """The answer up to the first stop sequence; the tokens made for it are kept, its text is not."""
    text = b"".join(said).decode()
    ends = [found for stop in stops if (found := text.find(stop)) >= 0]
    if not ends:
        return said
    room = len(text[: min(ends)].encode())
    kept: list[bytes] = []
    for piece in said:
        kept.append(piece[:room])
        room -= len(kept[-1])
        if room == 0:
            break
    return tuple(kept)
