"""The heap of a process that loads engines, and outlives them. Written against vLLM 0.32."""

import ctypes
import gc

from vllm.renderers import hf
from vllm.utils import func_utils


def settle_heap() -> None:
    """Collect what is left of a former engine, give free memory back, and take what stays out of the collector's work.

    vLLM and its libraries are more than half a million objects: a full collection that visits them holds every
    stream for a quarter of a second. And glibc keeps what loading needed for a while, some 40 MB more each time.
    Holds the interpreter for as long as one such collection.
    """
    gc.unfreeze()  # or a former engine that was frozen would stay for ever
    gc.collect()
    gc.freeze()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def forget_tokenizers() -> None:
    """Empty the caches that would keep the tokenizers of a former engine, some 40 MB.

    vLLM remembers what templates and signatures it has seen, by the tokenizer, or by a method of it.
    """
    for module in (hf, func_utils):
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
