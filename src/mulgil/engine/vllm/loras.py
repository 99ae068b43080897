"""The LoRA adapters in vLLM. Written against vLLM 0.32."""

import asyncio
import itertools
import logging
import re
import weakref
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from vllm.lora.request import LoRARequest
from vllm.v1.engine.exceptions import EngineDeadError

from mulgil.engine.lora import WEIGHTS, Adapter, check_unchanged, refused, shapes_in
from mulgil.engine.vllm.errors import unavailable
from mulgil.engine.vllm.hosting import HostedLLM
from mulgil.errors import AdapterConflictError, EngineUnavailableError, ModelNotFoundError, MulgilError

log = logging.getLogger(__name__)

T = TypeVar("T")

_TIMEOUT = 25.0
"""Seconds for a call. The core does nothing else meanwhile, and one that is silent for longer is rebuilt."""
_LONGEST_REASON = 300
_WORKERS_WORDS = re.compile(r"Worker failed with error '(.*)', please check", re.DOTALL)
_IN_A_LAYER = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d+)\.(self_attn|mlp)\.(?P<module>\w+)\.lora_(?P<side>[AB])\.weight"
)
_READ_HIDDEN = frozenset(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"))
_WRITE_HIDDEN = frozenset(("o_proj", "down_proj"))


class Loaded:
    """One version of an adapter that the core has.

    Attributes:
        adapter: what it is.
        request: what vLLM knows it by.
        holds: how many requests are to be answered by it.
        retired: nobody gets it any more.
    """

    __slots__ = ("adapter", "holds", "request", "retired")

    def __init__(self, adapter: Adapter, request: LoRARequest) -> None:
        self.adapter = adapter
        self.request = request
        self.holds = 0
        self.retired = False


class Hold:
    """The right of one request to be answered by an adapter; it ends with `release`, or with the request itself.

    Args:
        loaded: what is held.
        on_released: is told once, in the event loop.
    """

    def __init__(self, loaded: Loaded, on_released: Any) -> None:
        self.adapter = loaded.adapter
        self.request = loaded.request
        loop = asyncio.get_running_loop()
        # A request that is refused after it was prepared is dropped, and nobody tells the engine.
        self._end = weakref.finalize(self, _in_loop, loop, on_released, loaded)
        self._end.atexit = False

    def release(self) -> None:
        """It is answered. Safe to call twice."""
        self._end()


def _in_loop(loop: asyncio.AbstractEventLoop, on_released: Any, loaded: Loaded) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(on_released, loaded)


class LoadedAdapters:
    """Which adapters the core has, and which of them somebody still needs.

    vLLM loads from disk whatever a step needs and is not there, and dies when that fails; so what it has must be there
    for as long as a request may need it, and never be pushed out by another.

    Args:
        hosted: the engine.
        most: adapters that it has room for, those included that are only needed by running requests.
    """

    def __init__(self, hosted: HostedLLM, most: int) -> None:
        self._hosted = hosted
        self._most = most
        # Never used twice, and neither are the names with them: the prefix cache goes by those, and a step too.
        self._ids = itertools.count(1)
        self._named: dict[str, Loaded] = {}
        self._resident = 0
        self._removals: set[asyncio.Task[None]] = set()

    def hold(self, name: str) -> Hold:
        """The adapter *name* for one request.

        Raises:
            ModelNotFoundError: there is none.
        """
        if (loaded := self._named.get(name)) is None:
            raise ModelNotFoundError(name)
        loaded.holds += 1
        return Hold(loaded, self._released)

    async def load(self, adapter: Adapter) -> None:
        """See `Engine.load_adapter`. Not to be called twice at a time."""
        llm, before = self._hosted.living(), self._named.get(adapter.name)
        if before is not None and before.adapter.version == adapter.version:
            before.adapter = adapter
            return
        if self._resident >= self._most:
            raise AdapterConflictError(
                "Running requests still need adapters that were replaced or unloaded; try again when they have ended."
            )
        await asyncio.to_thread(_check_fits, adapter, llm.model_config.hf_text_config)
        number = next(self._ids)
        request = LoRARequest(f"{adapter.name}:{adapter.version}:{number}", number, str(adapter.path))
        self._resident += 1
        loaded = Loaded(adapter, request)
        try:
            await _answered(llm.add_lora(request), f"load the adapter '{adapter.name}'")
            await asyncio.to_thread(check_unchanged, adapter)
        except (MulgilError, asyncio.CancelledError):
            self._remove(loaded)
            raise
        except Exception as error:
            log.warning("vLLM does not take the adapter %s: %s", adapter.name, error)
            self._remove(loaded)  # it may have a half of it
            raise refused(f"vLLM does not take it: {_reason(error)}") from error
        self._named[adapter.name] = loaded
        if before is not None:
            self._retire(before)

    def unload(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        self._hosted.living()
        if (loaded := self._named.pop(name, None)) is not None:
            self._retire(loaded)

    def _retire(self, loaded: Loaded) -> None:
        loaded.retired = True
        if not loaded.holds:
            self._remove(loaded)

    def _released(self, loaded: Loaded) -> None:
        loaded.holds -= 1
        if loaded.retired and not loaded.holds:
            self._remove(loaded)

    def _remove(self, loaded: Loaded) -> None:
        removal = asyncio.create_task(self._removed(loaded))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _removed(self, loaded: Loaded) -> None:
        try:
            llm = self._hosted.living()
            await _answered(llm.remove_lora(loaded.request.lora_int_id), "remove an adapter")
            self._resident -= 1
        except EngineUnavailableError:
            pass  # the next engine will not have it
        except Exception:
            log.exception("vLLM could not remove the adapter %s", loaded.adapter.name)


def _check_fits(adapter: Adapter, model: Any) -> None:
    """Refuse what is made for a *model* of another size: vLLM takes it, and writes it over a part of what it should be.

    Raises:
        InvalidFieldError: it is.
    """
    try:
        shapes = shapes_in(adapter.path / WEIGHTS)
    except OSError as error:
        raise refused(f"its {WEIGHTS} cannot be read: {error.strerror}") from error
    for name, shape in shapes.items():
        if (found := _IN_A_LAYER.match(name)) is None or len(shape) != 2:
            continue
        if int(found["layer"]) >= model.num_hidden_layers:
            raise refused(f"it is for a model with more than the {model.num_hidden_layers} layers of this one")
        reads = found["side"] == "A" and found["module"] in _READ_HIDDEN
        writes = found["side"] == "B" and found["module"] in _WRITE_HIDDEN
        size = shape[1] if reads else shape[0]
        if (reads or writes) and size != model.hidden_size:
            raise refused(f"it is for a model whose hidden size is {size}, and that of this one is {model.hidden_size}")


def _reason(error: Exception) -> str:
    """What the worker said, out of what the processes above it have put around it."""
    said = str(error).removeprefix("Call to add_lora method failed: ")
    if found := _WORKERS_WORDS.search(said):
        said = found[1]
    return said[:_LONGEST_REASON]


async def _answered(call: Awaitable[T], what: str) -> T:
    try:
        return await asyncio.wait_for(call, _TIMEOUT)
    except TimeoutError:
        # The future of a core that has died meanwhile never resolves.
        raise EngineUnavailableError(f"The engine did not {what} within {_TIMEOUT:.0f} s.") from None
    except EngineDeadError as error:
        raise unavailable(error) from error
