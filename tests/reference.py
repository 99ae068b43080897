"""What transformers makes of a model, in float32: the answers that an engine has to give."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class Reference:
    """A model without an engine.

    Args:
        folder: of the model, not quantised.
        change: what to put in place of each weight, given its name; default: it stays.
    """

    def __init__(self, folder: Path, change: Callable[[str, Any], Any] = lambda _, tensor: tensor) -> None:
        import torch  # noqa: PLC0415 - an optional extra
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - an optional extra

        self._torch = torch
        self._network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, weight in self._network.named_parameters():
                weight.copy_(change(name, weight.data))

    def likelihoods(self, ids: Sequence[int]) -> list[float]:
        """The logarithm of the probability of each token after the first one."""
        with self._torch.no_grad():
            logits = self._network(self._torch.tensor([ids])).logits[0, :-1]
        chosen = self._torch.tensor(ids[1:]).unsqueeze(1)
        return [float(value) for value in logits.log_softmax(-1).gather(1, chosen)[:, 0]]

    def greedy(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The likeliest answer, at most as many *tokens* long."""
        with self._torch.no_grad():
            made = self._network.generate(self._torch.tensor([ids]), max_new_tokens=tokens, do_sample=False)
        return [int(token) for token in made[0, len(ids) :]]
