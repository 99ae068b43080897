"""The engine port on vLLM, pinned to 0.32. Nothing outside this package imports vLLM.

What is not obvious here was found by running 0.32.0: see "Engine" in docs/architecture.md.
"""

import os

# Before vLLM is imported, which each module here does.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # fork would copy our sockets and threads
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
