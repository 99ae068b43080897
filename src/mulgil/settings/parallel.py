"""How a model is spread over accelerators and machines: what vLLM would refuse late, or not at all, is refused here.

Written against vLLM 0.32. The sizes are judged by the model's own `config.json`, where it is on this machine.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

from mulgil.settings.checkpoint import model_config

_HEADS = ("num_attention_heads", "n_head")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_OF_NNODES = ("node_rank", "master_addr")
ROLES = ("nnodes", *_OF_NNODES, "master_port")
"""What says which part a machine has; these are settings, so that all of the server knows it."""
_EXTERNAL = ("data_parallel_rank", "data_parallel_external_lb")


def check_parallel(args: Mapping[str, Any]) -> None:
    """Refuse a spread that cannot work.

    Args:
        args: vLLM's engine arguments, as it would be given them.

    Raises:
        ValueError: it cannot; the message names the setting.
    """
    sizes = {name: _size(args, name) for name in _SIZES}
    _check_machines(args, sizes)
    if args.get("distributed_executor_backend") == "ray" and importlib.util.find_spec("ray") is None:
        raise ValueError("'distributed_executor_backend' is ray, which is not installed: install mulgil[ray]")
    model = model_config(str(args["model"]))
    if model:
        _check_model(model, args, sizes)


def peers(args: Mapping[str, Any]) -> str:
    """What else an engine needs to start, in a sentence for whoever waits in vain; empty where it needs nothing."""
    if _size(args, "nnodes") > 1:
        others = ", ".join(str(rank) for rank in range(_size(args, "nnodes")) if rank != args.get("node_rank", 0))
        return (
            f"'nnodes' is {args['nnodes']}: do the machines with 'node_rank' {others} run, and do they reach "
            f"'master_addr' {args.get('master_addr')} on 'master_port' {args.get('master_port', 29_501)}?"
        )
    if "ray" in (args.get("distributed_executor_backend"), args.get("data_parallel_backend")):
        needed = _size(args, "tensor_parallel_size") * _size(args, "pipeline_parallel_size")
        return f"'distributed_executor_backend' is ray: has the cluster {needed} accelerators free (`ray status`)?"
    return ""


_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes")


def _size(args: Mapping[str, Any], name: str) -> int:
    value = args.get(name) or 1
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"'{name}' must be a whole number of at least 1, not {value!r}")
    return value


def _check_machines(args: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    nnodes = sizes["nnodes"]
    if nnodes == 1:
        if stray := [name for name in _OF_NNODES if args.get(name)]:
            raise ValueError(f"'{stray[0]}' is of no use without 'nnodes': how many machines does the model span?")
        return
    if args.get("distributed_executor_backend") == "ray":
        raise ValueError(
            "'nnodes' is for a model that spans machines without Ray; Ray knows its machines: leave it out"
        )
    if sizes["data_parallel_size"] > 1:
        raise ValueError(
            "'nnodes' spreads one copy of the model: with 'data_parallel_size' start independent gateways, or for a "
            "mixture of experts use Ray"
        )
    if not args.get("master_addr"):
        raise ValueError("'master_addr' is needed with 'nnodes': the address of machine 0, as the others reach it")
    if (args.get("node_rank") or 0) >= nnodes:
        raise ValueError(
            f"'node_rank' is {args['node_rank']}, and with 'nnodes' {nnodes} it goes from 0 to {nnodes - 1}"
        )
    workers = sizes["tensor_parallel_size"] * sizes["pipeline_parallel_size"]
    if workers % nnodes:
        raise ValueError(
            f"'nnodes' is {nnodes}, which does not divide the {workers} accelerators of 'tensor_parallel_size' times "
            "'pipeline_parallel_size'"
        )


def _check_model(model: Mapping[str, Any], args: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    tensor = sizes["tensor_parallel_size"]
    if reason := _cannot_split(model, tensor):
        possible = [str(size) for size in range(1, (_heads(model) or 64) + 1) if not _cannot_split(model, size)]
        raise ValueError(f"'tensor_parallel_size' is {tensor}, {reason}; possible are {', '.join(possible)}")
    layers = model.get("num_hidden_layers")
    if isinstance(layers, int) and layers < sizes["pipeline_parallel_size"]:
        raise ValueError(
            f"'pipeline_parallel_size' is {sizes['pipeline_parallel_size']}, and the model has only {layers} layers"
        )
    outside = [name for name in _EXTERNAL if args.get(name) is not None and args[name] is not False]
    if outside and sizes["data_parallel_size"] > 1 and not any(model.get(name) for name in _EXPERTS):
        raise ValueError(
            f"'{outside[0]}' with 'data_parallel_size' is for mixtures of experts; of this model start independent "
            "gateways without either"
        )


def _heads(model: Mapping[str, Any]) -> int:
    found = (model[name] for name in _HEADS if isinstance(model.get(name), int))
    return next(found, 0)


def _cannot_split(model: Mapping[str, Any], size: int) -> str:
    """Why *size* accelerators cannot share each layer of *model*; empty where nothing speaks against it.

    The rules are those of vLLM's layers: heads and intermediate columns are divided evenly; key-value heads are
    either divided or copied evenly.
    """
    heads, inner, kv = _heads(model), model.get("intermediate_size"), model.get("num_key_value_heads")
    if heads % size:
        return f"which does not divide the model's {heads} attention heads"
    if isinstance(kv, int) and kv > 0 and (kv % size if kv >= size else size % kv):
        return f"by which the model's {kv} key-value heads can be neither divided nor copied"
    if isinstance(inner, int) and inner % size:
        return f"which does not divide the model's {inner} intermediate columns"
    return ""
