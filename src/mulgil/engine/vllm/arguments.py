"""What vLLM is told of the settings; the same on every machine that a model spans."""

import dataclasses
import logging
import os
from typing import Any, get_args

from vllm import AsyncEngineArgs
from vllm.config import StructuredOutputsConfig
from vllm.config.lora import MaxLoRARanks
from vllm.platforms import current_platform

from mulgil.engine.lora import AdapterRules
from mulgil.engine.vllm.quantisation import check_quantisation
from mulgil.settings import EngineSettings

log = logging.getLogger(__name__)

SPARE_ADAPTERS = 1
"""Adapters beyond the allowed number that the engine has room for: one that is replaced may still be needed."""
_OF_ADAPTERS = frozenset(("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank"))
SHUTDOWN_TIMEOUT = 10
"""Seconds that an engine is given to end by itself."""
_BINDING = "VLLM_CPU_OMP_THREADS_BIND"


def engine_args(settings: EngineSettings, adapters: AdapterRules) -> dict[str, Any]:
    """The arguments for `AsyncEngineArgs`.

    Raises:
        ValueError: `engine_args` names something that `AsyncEngineArgs` does not have, or this build of vLLM cannot
            spread a model so, or serve weights that are quantised so.
    """
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown := sorted(settings.engine_args.keys() - known):
        raise ValueError(f"engine_args: vLLM has no engine argument named {', '.join(unknown)}")
    if ours := sorted(settings.engine_args.keys() & _OF_ADAPTERS):
        raise ValueError(
            f"engine_args: {ours[0]} follows from 'max_adapters', 'max_lora_rank' and the adapters there are"
        )
    args: dict[str, Any] = {
        "scheduling_policy": "priority",
        # With "auto" the first structured request of the engine's life picks the backend for all.
        "structured_outputs_config": StructuredOutputsConfig(backend="xgrammar"),
        "shutdown_timeout": SHUTDOWN_TIMEOUT,
        **settings.for_vllm(),
        **(_for_adapters(adapters) if adapters.enabled else {}),
    }
    if current_platform.is_cpu():
        # A seeded request whose prefill is split kills the core: a CPU generator cannot be rewound.
        args["enable_chunked_prefill"] = False
        # Compiled, 0.32's CPU build answers fluently and wrongly; eager, it answers as transformers does.
        args["enforce_eager"] = True
        _check_cpu(args | settings.engine_args)
    check_quantisation(args | settings.engine_args)
    return args | settings.engine_args


def _for_adapters(rules: AdapterRules) -> dict[str, Any]:
    resident = rules.most + SPARE_ADAPTERS
    # On CPU a request without an adapter is given the last slot's beside requests with one: torch takes -1 for that
    # (0.32, lora/ops/torch_ops). vLLM fills the first free slot, so one that is never needed stays empty.
    return {
        "enable_lora": True,
        "max_loras": resident + 1 if current_platform.is_cpu() else rules.most,
        "max_cpu_loras": resident + 1 if current_platform.is_cpu() else resident,
        "max_lora_rank": min(rank for rank in get_args(MaxLoRARanks) if rank >= rules.max_rank),
    }


def _check_cpu(args: dict[str, Any]) -> None:
    if args.get("pipeline_parallel_size", 1) > 1:
        raise ValueError(
            "'pipeline_parallel_size' cannot be used with vLLM's CPU build: it starts, and dies of the first request"
        )
    ray = "ray" in (args.get("distributed_executor_backend"), args.get("data_parallel_backend"))
    if ray and not current_platform.ray_device_key:
        raise ValueError("'distributed_executor_backend' ray cannot be used with vLLM's CPU build: use mp")
    workers = args.get("tensor_parallel_size", 1) * args.get("data_parallel_size", 1)
    if workers > 1 and os.environ.get(_BINDING, "auto") == "auto":
        log.warning("%s is not set: the %d workers may all get the same CPU (docs/scale.md)", _BINDING, workers)
