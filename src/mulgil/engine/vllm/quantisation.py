"""Which quantised weights this build of vLLM can serve; what it cannot is refused before anything is loaded."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins

from mulgil.settings.checkpoint import config_of

_NO_KERNEL = "for which vLLM's CPU build has no kernel (docs/quantised.md)"
_ROUNDED_AT_LOADING = ("fp8", "fp8_per_tensor")


def check_quantisation(args: Mapping[str, Any]) -> None:
    """Refuse what vLLM would refuse after a minute of loading, or with words that do not help.

    Args:
        args: vLLM's engine arguments, as it would be given them.

    Raises:
        ValueError: vLLM does not know how the weights are quantised, or cannot compute with them on a CPU.
    """
    chosen, own = str(args.get("quantization") or ""), _described(str(args["model"]))
    method = str(own.get("quant_method", "")).lower()
    if not (chosen or method):
        return
    load_general_plugins()  # they may bring methods of their own
    if chosen and chosen not in QUANTIZATION_METHODS:
        raise ValueError(f"'quantization' is {chosen!r}, which vLLM does not have: {_instead_of(chosen)}")
    if method and method not in QUANTIZATION_METHODS:
        raise ValueError(f"the weights of 'model' are quantised by {method!r}, which vLLM does not have")
    if current_platform.is_cpu():
        _check_cpu(chosen, own)


def _described(model: str) -> dict[str, Any]:
    """What *model* says of how its weights are quantised; empty where they are not, or its files are not here."""
    own = config_of(model)
    told = own.get("quantization_config") or own.get("compression_config")
    return told if isinstance(told, dict) else {}


def _instead_of(chosen: str) -> str:
    near = difflib.get_close_matches(chosen.lower(), QUANTIZATION_METHODS)
    return f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(QUANTIZATION_METHODS))}"


def _check_cpu(chosen: str, own: Mapping[str, Any]) -> None:
    if not own and chosen in _ROUNDED_AT_LOADING:
        raise ValueError(f"'quantization' is {chosen!r}, which rounds weights while they are loaded, {_NO_KERNEL}")
    if wide := [bits for bits in _bits_of_weights_alone(own) if bits != 4]:
        raise ValueError(
            f"the weights of 'model' have {wide[0]} bits and its activations are not quantised, {_NO_KERNEL}"
        )


def _bits_of_weights_alone(own: Mapping[str, Any]) -> Iterator[int]:
    """How many bits whole-numbered weights have, where what they are multiplied with stays as it is."""
    if own.get("quant_method") in ("gptq", "awq"):
        yield own.get("bits") or own.get("w_bit") or 4
    groups = own.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") or {}
        if weights.get("type") == "int" and not group.get("input_activations"):
            yield weights.get("num_bits", 4)
