"""What makes two requests the same: the key under which their answer is kept.

It is made of the checked request, which is also all that an engine is given: of a body whose JSON has a name twice
both see the same one.
"""

from typing import Any

import orjson

from mulgil.cache.sealing import Seal
from mulgil.engine.base import TextRequest

# Whoever adds a field to a request makes it part of the key, unless it is named here.
WITHOUT_EFFECT = frozenset(
    (
        "stream", "stream_options", "user", "safety_identifier", "metadata", "prompt_cache_key", "service_tier",
        "verbosity",
    )
)  # fmt: skip
"""Fields that change nothing in what the engine makes."""

_FOLDED = frozenset(
    (
        "max_tokens", "max_completion_tokens", "n", "logprobs", "top_logprobs", "echo", "ignore_eos", "min_tokens",
        "logit_bias", "chat_template_kwargs", "truncation",
    )
)  # fmt: skip
_LEFT_OUT = set(WITHOUT_EFFECT | _FOLDED)


def is_repeatable(request: TextRequest) -> bool:
    """Whether who asks *request* twice wants the same answer twice: it is greedy, or has a seed."""
    return request.temperature == 0 or request.seed is not None


def canonical(request: TextRequest, default_max_tokens: int | None) -> bytes:
    """The same bytes for all requests that are the same to an engine, and other ones for any other.

    The order of names within a JSON schema counts, since models are told it, and write, in that order.

    Args:
        request: a checked one.
        default_max_tokens: longest answer of its tier, where it sets none.
    """
    length = ["tier", default_max_tokens] if request.output_tokens is None else request.output_tokens
    folded = [
        request.operation,
        length,
        request.n or 1,
        request.asked_logprobs,
        bool(getattr(request, "echo", None)),
        bool(request.ignore_eos),
        request.min_tokens or 0,
        _sorted(request.logit_bias),
        _sorted(getattr(request, "chat_template_kwargs", None)),
        getattr(request, "truncation", None) or "disabled",
    ]
    return orjson.dumps(folded) + request.model_dump_json(exclude=_LEFT_OUT).encode()


def _sorted(options: dict[str, Any] | None) -> list[tuple[str, Any]]:
    return sorted((options or {}).items(), key=lambda item: item[0])


class AnswerKeys:
    """Makes keys.

    Args:
        seal: makes the digests.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def key(self, tenant: str, request: TextRequest, fingerprint: str, default_max_tokens: int | None) -> str:
        """The key of *request* for *tenant*; nobody can tell from it what was asked, nor by whom.

        Args:
            tenant: who asks; nobody else finds the answer.
            request: a settled one.
            fingerprint: names the model, its variant and the way they are served; what another one has answered is
                not found.
            default_max_tokens: longest answer of its tier, where it sets none.
        """
        told = canonical(request, default_max_tokens)
        return self._seal.digest(b"key", tenant.encode(), fingerprint.encode(), told).hex()
