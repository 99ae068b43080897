"""A logits processor for vLLM that fails every step in which a request asks it to."""

from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

BANNED = 7
"""A request asks for it with a `logit_bias` of this token alone."""


class Raises(LogitsProcessor):  # type: ignore[misc]  # vLLM is not checked here
    """Raises in the engine's step, as a defect in a model's code would."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        for _, params, *_ in batch_update.added if batch_update else ():
            if params.logit_bias == {BANNED: 1.0}:
                raise RuntimeError("a step that fails")

    def apply(self, logits: Any) -> Any:
        return logits
