"""LoRA adapters of random weights, in peft's format."""

import json
from pathlib import Path

import numpy
from safetensors.numpy import save_file


def make_adapter(folder: Path, model: Path, *, seed: int = 1, rank: int = 8, strength: float = 0.05) -> Path:
    """Write an adapter for the attention of the *model* (a folder) into *folder*; the same one for the same *seed*."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    rows = {"q_proj": heads * width, "v_proj": config.get("num_key_value_heads", heads) * width}
    random = numpy.random.default_rng(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module, out in rows.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = _normal(random, (rank, hidden), strength)
            weights[f"{name}.lora_B.weight"] = _normal(random, (out, rank), strength)
    told = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": model.name,
        "r": rank, "lora_alpha": 2 * rank, "target_modules": sorted(rows), "bias": "none",
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(told))
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def _normal(random: numpy.random.Generator, shape: tuple[int, int], strength: float) -> numpy.ndarray:
    return (random.standard_normal(shape) * strength).astype(numpy.float32)
