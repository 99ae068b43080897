"""Quantised and fine-tuned copies of a model's folder, made here: nothing is downloaded, and both are exact.

The weights are rounded to the nearest step, which calibrated methods improve on; the files are those that they write.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]

_WEIGHTS = "model.safetensors"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP = 32
"""Weights that share a scale where 4 bits are used."""


def quantised(source: Path, folder: Path, form: str) -> Path:
    """Write the model in *source* to *folder*, its layers in one of `FORMS`; embeddings and norms stay as they are."""
    write, config = FORMS[form]
    tensors: Tensors = {}
    for name, tensor in _load(source).items():
        if is_projection(name):
            prefix = name.removesuffix("weight")
            tensors |= {prefix + part: value.contiguous() for part, value in write(tensor.float()).items()}
        else:
            tensors[name] = tensor
    return _save(source, folder, tensors, {"quantization_config": config})


def fine_tuned(source: Path, folder: Path, *, rank: int = 4, strength: float = 0.2) -> Path:
    """Write the model in *source* to *folder* with a low-rank change merged into its attention, as PEFT merges one."""
    import torch  # noqa: PLC0415 - an optional extra

    random = torch.Generator().manual_seed(5)
    tensors = _load(source)
    for name, tensor in tensors.items():
        if is_projection(name) and ("q_proj" in name or "v_proj" in name):
            rows, columns = tensor.shape
            b, a = torch.randn(rows, rank, generator=random), torch.randn(rank, columns, generator=random)
            delta = b @ a
            tensors[name] = (tensor.float() + delta * (strength * tensor.float().std() / delta.std())).to(tensor.dtype)
    return _save(source, folder, tensors, {})


def unquantised(tensor: Any, form: str) -> Any:
    """The numbers that *tensor* stands for after `form`: what a right engine computes with."""
    import torch  # noqa: PLC0415 - an optional extra

    bits, grouped = (8, False) if "8" in form else (4, True)
    if "fp8" in form:
        parts = _fp8(tensor.float())
        return parts["weight"].float() * parts["weight_scale"]
    if form == "awq":
        q, scale, zero = _asymmetric(tensor.float())
        return ((q - zero) * scale).reshape(tensor.shape)
    q, scale = _symmetric(tensor.float(), bits, grouped=grouped)
    return (q.to(torch.float32) * scale).reshape(tensor.shape)


def rounded_input(tensor: Any, form: str) -> Any:
    """The numbers that the weights of `form` are multiplied with, where the layer is given *tensor*."""
    if form == "fp8":
        parts = _fp8(tensor.reshape(-1, tensor.shape[-1]))
        return (parts["weight"].float() * parts["weight_scale"]).reshape(tensor.shape)
    if form == "int8-w8a8":
        scale = tensor.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        return (tensor / scale).round() * scale
    return tensor


def is_projection(name: str) -> bool:
    """Whether this weight is one of those that are quantised."""
    return name.endswith(".weight") and name.split(".")[-2] in _PROJECTIONS


def _load(folder: Path) -> Tensors:
    from safetensors.torch import load_file  # noqa: PLC0415 - an optional extra

    return dict(load_file(folder / _WEIGHTS))


def _save(source: Path, folder: Path, tensors: Tensors, config: Mapping[str, Any]) -> Path:
    from safetensors.torch import save_file  # noqa: PLC0415 - an optional extra

    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.name not in (_WEIGHTS, "SHA256SUMS"):
            shutil.copy(path, folder / path.name)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    own = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(own | config, indent=2))
    return folder


def _symmetric(weight: Any, bits: int, *, grouped: bool) -> tuple[Any, Any]:
    """Whole numbers of *weight* and their scales: one for each row, or for each `GROUP` of a row."""
    import torch  # noqa: PLC0415 - an optional extra

    most = 2 ** (bits - 1) - 1
    parts = weight.reshape(weight.shape[0], -1, GROUP if grouped else weight.shape[1])
    scale = (parts.abs().amax(-1, keepdim=True) / most).clamp(min=1e-8).to(torch.float16).float()
    return (parts / scale).round().clamp(-most - 1, most).to(torch.int32), scale


def _asymmetric(weight: Any) -> tuple[Any, Any, Any]:
    """As `_symmetric` with 4 bits, with a zero of its own for each group."""
    import torch  # noqa: PLC0415 - an optional extra

    parts = weight.reshape(weight.shape[0], -1, GROUP)
    low, high = parts.amin(-1, keepdim=True).clamp(max=0), parts.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 15).clamp(min=1e-8).to(torch.float16).float()
    zero = (-low / scale).round().clamp(0, 15)
    q = ((parts / scale).round() + zero).clamp(0, 15)
    return q.to(torch.int32), scale, zero.to(torch.int32)


def _packed(values: Any, order: tuple[int, ...] = tuple(range(8))) -> Any:
    """Eight numbers of 0 to 15 in each int32, along the last dimension; the first one lowest."""
    import torch  # noqa: PLC0415 - an optional extra

    eights = values.to(torch.int64).reshape(*values.shape[:-1], -1, 8)
    together = sum(eights[..., part] << (4 * place) for place, part in enumerate(order))
    return torch.where(together >= 2**31, together - 2**32, together).to(torch.int32)


def _int8(weight: Any) -> Tensors:
    import torch  # noqa: PLC0415 - an optional extra

    q, scale = _symmetric(weight, 8, grouped=False)
    return {"weight": q.reshape(weight.shape).to(torch.int8), "weight_scale": scale[:, 0].to(torch.float32)}


def _fp8(weight: Any) -> Tensors:
    import torch  # noqa: PLC0415 - an optional extra

    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-8) / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def _int4(weight: Any) -> Tensors:
    import torch  # noqa: PLC0415 - an optional extra

    q, scale = _symmetric(weight, 4, grouped=True)
    return {
        "weight_packed": _packed(q.reshape(weight.shape) + 8),
        "weight_scale": scale[..., 0].to(torch.bfloat16),
        "weight_shape": torch.tensor(weight.shape),
    }


def _packed_int8(weight: Any) -> Tensors:
    import torch  # noqa: PLC0415 - an optional extra

    parts = _int8(weight)
    unsigned = (parts["weight"].to(torch.int64) + 128).reshape(weight.shape[0], -1, 4)
    together = sum(unsigned[..., place] << (8 * place) for place in range(4))
    packed = torch.where(together >= 2**31, together - 2**32, together).to(torch.int32)
    scale = parts["weight_scale"].to(torch.bfloat16)
    return {"weight_packed": packed, "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}


def _gptq(weight: Any) -> Tensors:
    import torch  # noqa: PLC0415 - an optional extra

    rows, columns = weight.shape
    q, scale = _symmetric(weight, 4, grouped=True)
    groups = columns // GROUP
    return {
        "qweight": _packed(q.reshape(weight.shape) + 8).t(),
        "qzeros": _packed(torch.full((groups, rows), 7)),  # its format keeps one less than the zero
        "scales": scale[..., 0].t().to(torch.float16),
        "g_idx": torch.arange(columns, dtype=torch.int32) // GROUP,
    }


def _awq(weight: Any) -> Tensors:
    import torch  # noqa: PLC0415 - an optional extra

    q, scale, zero = _asymmetric(weight)
    return {
        "qweight": _packed(q.reshape(weight.shape).t(), _AWQ_ORDER),
        "qzeros": _packed(zero[..., 0].t(), _AWQ_ORDER),
        "scales": scale[..., 0].t().to(torch.float16),
    }


def _compressed(form: str, weights: Mapping[str, Any], activations: Mapping[str, Any] | None) -> dict[str, Any]:
    whole = {**weights, "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": whole, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


_OF_EACH_TOKEN = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}

FORMS: dict[str, tuple[Callable[[Any], Tensors], dict[str, Any]]] = {
    "int8-w8a8": (
        _int8,
        _compressed(
            "int-quantized",
            {"num_bits": 8, "type": "int", "strategy": "channel"},
            {**_OF_EACH_TOKEN, "type": "int"},
        ),
    ),
    "int8-w8a16": (
        _packed_int8,
        _compressed("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, None),
    ),
    "int4-w4a16": (
        _int4,
        _compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}, None),
    ),
    "gptq": (
        _gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False},
    ),
    "awq": (
        _awq,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    ),
    "fp8": (
        _fp8,
        _compressed(
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "channel"},
            {**_OF_EACH_TOKEN, "type": "float"},
        ),
    ),
}
"""What can be written: how one weight is, and what the model's `config.json` says of it."""
