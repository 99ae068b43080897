"""The settings of the response cache."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class CacheSettings(BaseModel):
    """The response cache, of the models that have `cache = true` in `mulgil.toml` (docs/cache.md)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    response_cache_url: SecretStr | None = None
    """Redis or Valkey in which gateways share answers. Default: each process keeps its own in memory."""
    response_cache_secret: SecretStr | None = None
    """What entries there are sealed with, at least 16 characters and the same for all gateways that share them."""
    response_cache_ttl: float = Field(default=3_600.0, gt=0, le=30 * 86_400)
    """Seconds that an answer is kept."""
    response_cache_entry_bytes: int = Field(default=1024 * 1024, ge=1, le=64 * 1024 * 1024)
    """Largest answer that is kept."""
    response_cache_entries: int = Field(default=10_000, ge=1)
    """Most answers in memory; the least recently used go first."""
    response_cache_bytes: int = Field(default=64 * 1024 * 1024, ge=1)
    """Most memory that they take."""
