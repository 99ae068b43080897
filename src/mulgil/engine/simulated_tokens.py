"""The simulated engine's tokenizer: a few words, single bytes for all else, and nothing is lost."""

import re
from collections.abc import Sequence

_TEXT = (
    "water flows where the ground allows it and a good channel only shows the way "
    "물은 길을 따라 흐르고 stone turns it sand slows it 좋은 물길은 막지 않고 이끈다 "
    "rain fills the river 🌊 the river reaches the sea 바다에 닿는다 💧"
)
WORDS = tuple(_TEXT.split())
"""What answers are made of."""

_BYTES = 256
_PIECES = tuple(dict.fromkeys(WORDS))
_IDS = {piece: _BYTES + index for index, piece in enumerate(_PIECES)}
_FORMATTING = _BYTES + len(_PIECES)
_FORMATTING_TOKENS = 4
VOCABULARY = _FORMATTING + 1
"""Number of token ids."""


def encode(text: str) -> list[int]:
    """The token ids of *text*."""
    ids: list[int] = []
    for found in re.finditer(r"\s+|\S+", text):
        piece = found[0]
        known = _IDS.get(piece)
        ids += piece.encode() if known is None else (known,)
    return ids


def decode(ids: Sequence[int]) -> str:
    """The text of *ids*; formatting tokens have none, and half a character is shown as U+FFFD."""
    return b"".join(token_bytes(token) for token in ids).decode(errors="replace")


def encode_message(text: str) -> list[int]:
    """A few tokens of formatting, then the text's."""
    return [_FORMATTING] * _FORMATTING_TOKENS + encode(text)


def token_bytes(token: int) -> bytes:
    """What a token stands for; nothing, where it is formatting."""
    if token < _BYTES:
        return bytes([token])
    return b"" if token == _FORMATTING else _PIECES[token - _BYTES].encode()
