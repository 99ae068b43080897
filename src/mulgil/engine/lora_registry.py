"""The LoRA adapters of a process: which there are, and that every engine of it has them."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

from mulgil.engine.base import Engine
from mulgil.engine.lora import Adapter, AdapterRules, read_adapter
from mulgil.errors import (
    AdapterConflictError,
    AdapterNotFoundError,
    EngineUnavailableError,
    InvalidFieldError,
    MulgilError,
)

log = logging.getLogger(__name__)

Source = Literal["config", "admin"]


class AdapterRegistry:
    """Loads adapters into the engine of the moment, and into each that comes after it.

    An adapter that is replaced or unloaded is gone for new requests at once; those that were prepared with it, whether
    they run or wait, end with it.

    Args:
        rules: which adapters the engine can have.
        configured: folders of those that it is to have from the start, by name.
        taken: names that no adapter may have, since something else is served under them.
        needed: names of those that cannot be unloaded, since variants of models answer by them.

    Raises:
        ValueError: one of them cannot be loaded; names it and the reason.
    """

    def __init__(
        self,
        rules: AdapterRules,
        configured: Mapping[str, Path],
        taken: Collection[str],
        needed: Collection[str] = (),
    ) -> None:
        self._rules = rules
        self._taken = frozenset(taken)
        self._needed = frozenset(needed)
        self._adapters: dict[str, Adapter] = {}
        self._sources: dict[str, Source] = {}
        self._lock = asyncio.Lock()
        self._begun = False
        if len(configured) > rules.most:
            raise ValueError(f"adapters: there are {len(configured)}, and at most {rules.most} may be ('max_adapters')")
        for name, path in configured.items():
            try:
                self._check_name(name)
                self._adapters[name] = read_adapter(name, path, rules, anywhere=True)
            except MulgilError as error:
                raise ValueError(f"adapters.{name}: {error.message}") from None
            self._sources[name] = "config"

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that are served, in the order in which they came."""
        return tuple(self._adapters)

    def find(self, name: str) -> Adapter | None:
        """The adapter that is served as *name* now; None where there is none. Cheap: for every request."""
        return self._adapters.get(name)

    def source(self, name: str) -> Source:
        """Who asked for the adapter *name*."""
        return self._sources[name]

    async def load_into(self, engine: Engine) -> None:
        """Give *engine*, which has just started, all adapters, as their folders are now.

        One that cannot be loaded any more is served no longer, and that is logged; the engine is to serve without it.

        Raises:
            EngineUnavailableError: the engine died meanwhile; or it is the first, and one cannot be loaded.
        """
        async with self._lock:
            for known in list(self._adapters.values()):
                try:
                    await self._load_again(engine, known)
                except EngineUnavailableError:
                    raise
                except MulgilError as error:
                    if not self._begun:
                        raise EngineUnavailableError(
                            f"Adapter '{known.name}' cannot be loaded. {error.message}"
                        ) from error
                    log.error("adapter %s cannot be loaded again, and is not served any more: %s", known.name, error)
                    self._forget(known.name)
            self._begun = True

    async def load(self, engine: Callable[[], Engine], name: str, path: Path) -> Adapter:
        """Serve what is in the folder *path* as *name*, in the place of what was served so before.

        Args:
            engine: gives the one of the moment, or raises `EngineUnavailableError`.
            name: of a new adapter, or of one that is replaced.
            path: of a folder within one of those from which adapters may be loaded.

        Raises:
            InvalidFieldError: it may not be loaded, or cannot; names `name` or `path`, and the reason.
            AdapterConflictError: there are as many as may be.
            EngineUnavailableError: there is no engine to load it into.
        """
        async with self._lock:
            self._check_name(name)
            if name not in self._adapters and len(self._adapters) >= self._rules.most:
                raise AdapterConflictError(
                    f"There are {len(self._adapters)} adapters, which is as many as may be ('max_adapters'). "
                    "Unload one first."
                )
            adapter = await self._loaded(engine(), name, path, "admin")
            self._adapters[name], self._sources[name] = adapter, "admin"
            return adapter

    async def unload(self, engine: Callable[[], Engine], name: str) -> Adapter:
        """Serve *name* no longer; what was.

        Raises:
            AdapterNotFoundError: there is no such adapter.
            AdapterConflictError: a variant of a model needs it.
        """
        async with self._lock:
            if name not in self._adapters:
                raise AdapterNotFoundError(name)
            if name in self._needed:
                raise AdapterConflictError(f"A variant of a model answers by the adapter '{name}'; it can be replaced.")
            adapter = self._adapters[name]
            self._forget(name)
            try:
                await engine().unload_adapter(name)
            except EngineUnavailableError:
                log.info("the adapter %s was unloaded while there was no engine; the next one will not have it", name)
            return adapter

    async def _load_again(self, engine: Engine, known: Adapter) -> None:
        adapter = await self._loaded(engine, known.name, known.path, self._sources[known.name])
        if adapter.version != known.version:
            log.warning("the files of adapter %s have changed; its version is %s now", adapter.name, adapter.version)
        self._adapters[adapter.name] = adapter

    async def _loaded(self, engine: Engine, name: str, path: Path, source: Source) -> Adapter:
        # In a thread: all of its bytes are read.
        adapter = await asyncio.to_thread(read_adapter, name, path, self._rules, anywhere=source == "config")
        await engine.load_adapter(adapter)
        return adapter

    def _check_name(self, name: str) -> None:
        if name in self._taken:
            raise InvalidFieldError(
                f"Invalid 'name': '{name}' is what something else is served as.", param="name", code="invalid_value"
            )

    def _forget(self, name: str) -> None:
        self._adapters.pop(name, None)
        self._sources.pop(name, None)
