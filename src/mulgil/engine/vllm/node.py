"""A machine that computes for machine 0: one of the `nnodes` that a model spans. Written against vLLM 0.32.

It does what `vllm serve --headless` does, with our settings, and two things more: it does not wait for machine 0 for
ever, and it ends when machine 0 does. vLLM's workers would wait for their next step for ever then, and the engine that
machine 0 builds meanwhile would wait for them.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
from typing import Any

from vllm import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from mulgil.engine.lora import AdapterRules
from mulgil.engine.vllm.arguments import engine_args
from mulgil.settings import EngineSettings
from mulgil.settings.parallel import peers

log = logging.getLogger(__name__)

_LEFT = 3
_PROBE_AFTER = 10
_LOST_AFTER = 30
"""Seconds after which a machine 0 that says nothing is asked whether it is there, and given up; see tcp(7)."""


def take_part(settings: EngineSettings, adapters: AdapterRules) -> int:
    """Compute for machine 0.

    Args:
        settings: the model, as on machine 0.
        adapters: which LoRA adapters it can have, as there.

    Returns:
        The exit status: 0 after a signal, 3 when machine 0 was not found in time, or has ended.

    Raises:
        ValueError: vLLM does not know an engine argument, or the model cannot be spread so.
    """
    args = AsyncEngineArgs(**engine_args(settings, adapters))
    config: Any = args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER, headless=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _leave(0))
    late = threading.Timer(
        settings.engine_start_timeout, _on_late, [settings.engine_start_timeout, peers(args.__dict__)]
    )
    late.daemon = True
    late.start()
    executor = MultiprocExecutor(config, monitor_workers=False)
    late.cancel()
    log.info("computing for machine 0")
    threading.Thread(target=_end_with, args=(settings.master_addr, settings.master_port), daemon=True).start()
    executor.start_worker_monitor(inline=True)  # returns when a worker has ended
    return _LEFT


def _on_late(seconds: float, waiting_for: str) -> None:
    log.error("not ready after %g s ('engine_start_timeout'). %s", seconds, waiting_for)
    _leave(_LEFT)


def _end_with(host: str, port: int) -> None:
    """End this process as soon as what machine 0 keeps open for as long as its engine lives is closed."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_LOST_AFTER) as line:
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", _PROBE_AFTER), ("TCP_KEEPINTVL", _PROBE_AFTER)):
            if hasattr(socket, name):  # not every system has all of them
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        if hasattr(socket, "TCP_KEEPCNT"):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _LOST_AFTER // _PROBE_AFTER)
        while line.recv(1024):
            pass
    log.error("machine 0 has ended its engine, and so does this one")
    _leave(_LEFT)


def _leave(status: int) -> None:
    """End at once, whatever the main thread waits for, with nothing left."""
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(status)
