"""LoRA adapters of random weights, in peft's format."""

import json
import random
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NO_MODEL = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
"""For adapters that only the simulated engine is given."""

Tensors = Mapping[str, tuple[int, int]]


def make_adapter(folder: Path, model: Path | None = None, *, seed: int = 1, rank: int = 8, **told: Any) -> Path:
    """Write an adapter for the attention of the *model* (a folder) into *folder*; the same one for the same *seed*.

    Args:
        folder: made where it is missing.
        model: the folder of the model; None for one that is nowhere.
        seed: of the weights, which are large enough to change every answer.
        rank: of the adapter.
        told: what the configuration says besides, or instead.
    """
    config = json.loads((model / "config.json").read_text()) if model else NO_MODEL
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    rows = {"q_proj": heads * width, "v_proj": config["num_key_value_heads"] * width}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, out in rows.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = (rank, hidden)
            tensors[f"{name}.lora_B.weight"] = (out, rank)
    folder.mkdir(parents=True, exist_ok=True)
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": sorted(rows), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(said | told))
    write_tensors(folder, tensors, seed=seed)
    return folder


def alike(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two lists of the likeliest tokens, with their log-probabilities, are of the same weights.

    A step computes a prompt beside others with other roundings than alone, so a text can go another way where two
    tokens are nearly as likely; how likely they are hardly changes.
    """
    shared = one.keys() & other.keys()
    return 2 * len(shared) > len(one) and all(abs(one[token] - other[token]) < 0.1 for token in shared)


def write_tensors(folder: Path, tensors: Tensors, *, seed: int = 1) -> None:
    """Write *tensors*, by name and shape, as the weights of the adapter in *folder*."""
    chance = random.Random(seed)
    header: dict[str, Any] = {}
    values = array("f")
    for name, (rows, columns) in tensors.items():
        begin = len(values) * values.itemsize
        values.extend(chance.gauss(0, 0.2) for _ in range(rows * columns))
        end = len(values) * values.itemsize
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, end]}
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)  # the weights begin at a multiple of 8
    (folder / "adapter_model.safetensors").write_bytes(len(told).to_bytes(8, "little") + told + values.tobytes())
