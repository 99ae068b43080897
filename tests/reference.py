"""What transformers makes of a model, in float32: the answers that an engine has to give."""

from collections.abc import Sequence
from pathlib import Path

from quantised import is_projection, rounded_input, unquantised


class Reference:
    """A model without an engine.

    Args:
        folder: of the model, not quantised.
        form: compute with the numbers that its weights, and what they are multiplied with, have in this form of
            `quantised`; default: as they are.
    """

    def __init__(self, folder: Path, form: str | None = None) -> None:
        import torch  # noqa: PLC0415 - an optional extra
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - an optional extra

        self._torch = torch
        self._network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for name, module in self._network.named_modules():
            if form and is_projection(f"{name}.weight"):
                module.weight.data = unquantised(module.weight.data, form)
                module.register_forward_pre_hook(lambda _, given: (rounded_input(given[0], form),))

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
