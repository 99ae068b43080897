"""The adapters that the settings name: stores, sources of keys, and the engine."""

import asyncio
import importlib
import secrets
from contextlib import aclosing

from mulgil.admission.store import BudgetStore
from mulgil.answers.answering import Caching
from mulgil.auth.cached import CachedKeys
from mulgil.auth.file import FileKeys, KeyFile
from mulgil.auth.source import KeyChain, OpenDoor, StaticKeys
from mulgil.cache.key import AnswerKeys
from mulgil.cache.responses import CacheRules, ResponseCache
from mulgil.cache.sealing import Seal
from mulgil.cache.store import AnswerStore
from mulgil.engine.base import Engine
from mulgil.engine.load import Capacity
from mulgil.engine.simulated import SimulatedEngine
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
from mulgil.tiers import load_cached_models


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


def build_caching(settings: Settings, fingerprint: str) -> Caching:
    """The response cache that the settings name, for what is served as *fingerprint* says.

    Raises:
        ValueError: its URL is none, or the file with the models cannot be read.
    """
    given = settings.response_cache_secret
    # What lies in the memory of this process nobody else has to read.
    seal = Seal(given.get_secret_value().encode() if given else secrets.token_bytes(32))
    rules = CacheRules(settings.response_cache_ttl, settings.response_cache_entry_bytes)
    cache = ResponseCache(build_answer_store(settings), seal, rules)
    return Caching(load_cached_models(settings.config), AnswerKeys(seal, fingerprint), cache)


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
            importlib.import_module("mulgil.engine.vllm.adapter").VLLMEngine(settings)
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
    return int(node.take_part(settings))


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
        engine: Engine = adapter.VLLMEngine(settings, with_series=settings.engine_metrics, traces_endpoint=endpoint)
    except ValueError as error:
        raise EngineUnavailableError(str(error)) from error
    return engine


async def prove(engine: Engine) -> None:
    """Have one real token made, with its probability: what an engine does for the first time may take long."""
    request = CompletionRequest(model="any", prompt="Hello", max_tokens=1, logprobs=1)
    async with aclosing(engine.generate(await engine.prepare(request, tenant=""))) as snapshots:
        async for _ in snapshots:
            pass
