"""What is kept of an answer, and how it is told from anything else that may lie in its place."""

from pydantic import BaseModel, ConfigDict, ValidationError

from mulgil.cache.sealing import SIZE, Seal
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot

_FORMAT = b"mulgil-answer-1\n"
_WHOLE = frozenset(("stop", "length", "tool_calls"))


class Entry(BaseModel):
    """A whole answer.

    Attributes:
        made_at: when its generation ended, in Unix time.
        prompt_tokens: exact length of the prompt.
        choices: as they were at the end.
        dropped_messages: how many of the conversation were left out, so that it fitted.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    made_at: float
    prompt_tokens: int
    choices: tuple[ChoiceSnapshot, ...]
    dropped_messages: int = 0

    @property
    def snapshot(self) -> Snapshot:
        """The answer, of which the prompt has cost nobody anything."""
        return Snapshot(self.choices, cached_tokens=self.prompt_tokens)


def is_whole(snapshot: Snapshot) -> bool:
    """Whether every choice of it has come to an end of its own."""
    return all(choice.finish_reason in _WHOLE for choice in snapshot.choices)


def sealed(entry: Entry, key: str, seal: Seal) -> bytes:
    """*entry* as bytes that `opened` takes under the same key and from the same seal alone."""
    body = entry.model_dump_json().encode()
    return _FORMAT + seal.digest(b"entry", key.encode(), body) + body


def opened(raw: bytes, key: str, seal: Seal) -> Entry | None:
    """The entry in *raw*; None if it is of another version, cut off, changed, or was kept under another key."""
    if not raw.startswith(_FORMAT):
        return None
    start = len(_FORMAT) + SIZE
    digest, body = raw[len(_FORMAT) : start], raw[start:]
    if not seal.fits(digest, b"entry", key.encode(), body):
        return None
    try:
        return Entry.model_validate_json(body)
    except ValidationError:
        return None
