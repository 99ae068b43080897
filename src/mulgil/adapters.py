"""The adapters that the settings name: stores, sources of keys, and the engine."""

import asyncio
import importlib
import secrets
from collections.abc import Collection, Mapping
from contextlib import aclosing

from mulgil import __version__
from mulgil.admission.store import BudgetStore
from mulgil.answers.answering import Caching
from mulgil.auth.cached import CachedKeys
from mulgil.auth.file import FileKeys, KeyFile
from mulgil.auth.source import KeyChain, OpenDoor, StaticKeys
from mulgil.cache.key import AnswerKeys
from mulgil.cache.responses import CacheRules, ResponseCache
from mulgil.cache.sealing import Seal
from mulgil.cache.store import AnswerStore
from mulgil.catalogue import Catalogue
from mulgil.config_file import ModelOptions, load_adapters, load_models, load_upstreams
from mulgil.engine.base import Engine
from mulgil.engine.load import Capacity
from mulgil.engine.lora import AdapterRules
from mulgil.engine.lora_registry import AdapterRegistry
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.upstream.answering import Upstream
from mulgil.errors import EngineUnavailableError
from mulgil.schemas.completions import CompletionRequest
from mulgil.settings import Settings
from mulgil.stores.fallback import FallbackStore
from mulgil.stores.guard import GuardedStore
from mulgil.stores.memory import MemoryStore
from mulgil.stores.memory_answers import MemoryAnswers
from mulgil.stores.redis import RedisStore
from mulgil.stores.redis_answers import RedisAnswers
from mulgil.stores.redis_keys import RedisKeys
from mulgil.telemetry.traces import Tracing


def build_store(settings: Settings) -> BudgetStore:
    """The store of budgets that the settings name: shared by replicas in Redis, or of this process alone."""
    if settings.redis_url is None:
        return MemoryStore(lease_ttl=settings.lease_ttl)
    return RedisStore(
        settings.redis_url.get_secret_value(),
        timeout=settings.store_timeout,
        connections=settings.store_connections,
        lease_ttl=settings.lease_ttl,
    )


def with_fallback(guarded: GuardedStore, settings: Settings) -> BudgetStore:
    """*guarded*, or with `limiter_on_failure=local` also a store of this process behind it."""
    if settings.limiter_on_failure == "closed":
        return guarded
    return FallbackStore(guarded, MemoryStore(lease_ttl=settings.lease_ttl), replicas=settings.replicas)


def build_caching(settings: Settings, models: Mapping[str, ModelOptions]) -> Caching:
    """The response cache that the settings name, for those of *models* whose options say so.

    Raises:
        ValueError: its URL is none.
    """
    given = settings.response_cache_secret
    # What lies in the memory of this process nobody else has to read.
    seal = Seal(given.get_secret_value().encode() if given else secrets.token_bytes(32))
    rules = CacheRules(settings.response_cache_ttl, settings.response_cache_entry_bytes)
    cache = ResponseCache(build_answer_store(settings), seal, rules)
    cached = frozenset(name for name, said in models.items() if said.cache)
    return Caching(cached, AnswerKeys(seal), cache)


def build_answer_store(settings: Settings) -> AnswerStore:
    """The store of answers that the settings name: shared in Redis, or of this process alone."""
    if settings.response_cache_url is None:
        return MemoryAnswers(most_entries=settings.response_cache_entries, most_bytes=settings.response_cache_bytes)
    return RedisAnswers(
        settings.response_cache_url.get_secret_value(),
        most_bytes=settings.response_cache_entry_bytes,
        timeout=settings.store_timeout,
        connections=settings.store_connections,
    )


def build_keys(settings: Settings) -> KeyChain:
    """The sources of keys that the settings name, those first that no failure can reach.

    Raises:
        ValueError: an entry of `api_keys` is no key, or the file of keys cannot be read.
    """
    fixed = OpenDoor() if settings.insecure else StaticKeys(key.get_secret_value() for key in settings.api_keys)
    stores = build_key_stores(settings)
    sources = [FileKeys(store) if isinstance(store, KeyFile) else CachedKeys(store) for store in stores]
    return KeyChain([fixed, *sources], stores)


def build_key_stores(settings: Settings) -> list[KeyFile | RedisKeys]:
    """Where keys are kept; the first one is where new keys go."""
    stores: list[KeyFile | RedisKeys] = []
    if settings.keys_file:
        stores.append(KeyFile(settings.keys_file))
    if settings.redis_url:
        stores.append(RedisKeys(settings.redis_url.get_secret_value(), timeout=settings.store_timeout))
    return stores


def check_engine_args(settings: Settings) -> None:
    """Let vLLM judge `engine_args`, how the model is spread, and how quantised; slow, since vLLM is imported for it.

    Raises:
        ValueError: vLLM does not have one of them, cannot spread or compute such a model, or is not installed.
    """
    if settings.engine == "vllm" and (settings.engine_args or settings.spread or settings.quantised):
        try:
            importlib.import_module("mulgil.engine.vllm.adapter").VLLMEngine(settings, adapters=adapter_rules(settings))
        except ImportError as error:
            raise ValueError(f"engine_args cannot be checked, since vLLM cannot be imported: {error}") from error


def take_part(settings: Settings) -> int:
    """Compute for machine 0, of which this is another one, until that ends.

    Returns:
        The exit status: 0 after a signal, 3 when machine 0 was not found, or has ended.

    Raises:
        ValueError: vLLM is not installed, or does not know an engine argument.
    """
    try:
        node = importlib.import_module("mulgil.engine.vllm.node")
    except ImportError as error:
        raise ValueError(f"vLLM cannot be imported: {error}") from error
    return int(node.take_part(settings, adapter_rules(settings)))


async def build_engine(settings: Settings, tracing: Tracing | None = None) -> Engine:
    """The engine that the settings name, not started. vLLM adds its span to each trace of *tracing*.

    Raises:
        EngineUnavailableError: vLLM is not installed, or does not know an engine argument.
    """
    if settings.engine == "simulated":
        return SimulatedEngine(
            max_model_len=settings.max_model_len or 8_192,
            default_max_tokens=settings.default_max_tokens,
            ttft=settings.simulated_ttft,
            gap=settings.simulated_gap,
            capacity=Capacity(settings.max_num_seqs, settings.simulated_kv_tokens),
        )
    try:
        # Here and in a thread: the import takes many seconds, and the server answers meanwhile.
        adapter = await asyncio.to_thread(importlib.import_module, "mulgil.engine.vllm.adapter")
    except ImportError as error:
        raise EngineUnavailableError(
            f"vLLM cannot be imported ({error}). Install mulgil[cpu] or mulgil[gpu], or use --engine simulated."
        ) from error
    if tracing is not None:
        tracing.serve_all()
    try:
        endpoint = tracing.endpoint if tracing else None
        engine: Engine = adapter.VLLMEngine(
            settings,
            with_series=settings.engine_metrics,
            traces_endpoint=endpoint,
            adapters=adapter_rules(settings),
        )
    except ValueError as error:
        raise EngineUnavailableError(str(error)) from error
    return engine


def adapter_rules(settings: Settings) -> AdapterRules:
    """Which LoRA adapters the engine can have: none, unless some are configured or may be loaded later.

    Raises:
        ValueError: the file that names them cannot be read.
    """
    return AdapterRules(
        enabled=bool(settings.adapter_folders or load_adapters(settings.config)),
        folders=settings.adapter_folders,
        most=settings.max_adapters,
        max_rank=settings.max_lora_rank,
    )


def build_loras(settings: Settings) -> AdapterRegistry:
    """The LoRA adapters that the settings name, read from their folders.

    Raises:
        ValueError: one of them cannot be loaded, or has the name of a model.
    """
    said = load_models(settings.config)
    aliases = (name for name, options in said.items() if options.served)
    needed = (variant.adapter for options in said.values() for variant in options.variants.values() if variant.adapter)
    taken = (*settings.model_names, *settings.embedding_names, *aliases)
    return AdapterRegistry(adapter_rules(settings), load_adapters(settings.config), taken, tuple(needed))


def build_upstreams(settings: Settings) -> Mapping[str, Upstream]:
    """The servers that may answer as fallbacks, by name; none of them is asked for anything yet.

    Raises:
        ValueError: the file that names them cannot be read, or the key of one is nowhere.
    """
    return {
        name: Upstream(name, options, default_max_tokens=settings.default_max_tokens)
        for name, options in load_upstreams(settings.config).items()
    }


def build_catalogue(settings: Settings, adapters: AdapterRegistry, upstreams: Collection[str]) -> Catalogue:
    """What may be asked for, and what may answer instead.

    Raises:
        ValueError: the file with the models cannot be read, or what it says of them leads nowhere.
    """
    fingerprint = settings.fingerprint(__version__)
    catalogue = Catalogue(settings.model_names, fingerprint, load_models(settings.config), adapters)
    catalogue.check(upstreams, settings.embedding_names)
    return catalogue


async def make_ready(engine: Engine, adapters: AdapterRegistry, *, canary: bool) -> None:
    """Give *engine*, which has just started, all *adapters*, and with *canary* have it prove that it can answer."""
    await adapters.load_into(engine)
    if canary:
        await prove(engine)


async def prove(engine: Engine) -> None:
    """Have one real token made, with its probability: what an engine does for the first time may take long."""
    request = CompletionRequest(model="any", prompt="Hello", max_tokens=1, logprobs=1)
    async with aclosing(engine.generate(await engine.prepare(request, tenant=""))) as snapshots:
        async for _ in snapshots:
            pass
