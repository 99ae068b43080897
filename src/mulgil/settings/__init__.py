"""Every setting, declared once: its variable, flag, default, rule and the words that document it."""

import os
import re

from dotenv import dotenv_values
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from mulgil.base_url import WHAT_IT_IS, is_base_url
from mulgil.settings.adapters import AdapterSettings
from mulgil.settings.cache import CacheSettings
from mulgil.settings.groups import (
    EmbeddingSettings,
    EngineSettings,
    KeySettings,
    LimitSettings,
    ServerSettings,
)
from mulgil.settings.operation import TelemetrySettings, UsageSettings
from mulgil.settings.parallel import ROLES, check_parallel

__all__ = [
    "ENV_PREFIX",
    "AdapterSettings",
    "CacheSettings",
    "EmbeddingSettings",
    "EngineSettings",
    "KeySettings",
    "LimitSettings",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "UsageSettings",
    "problems",
    "unknown_variables",
]

ENV_PREFIX = "MULGIL_"


class Settings(
    EngineSettings,
    AdapterSettings,
    EmbeddingSettings,
    ServerSettings,
    TelemetrySettings,
    LimitSettings,
    CacheSettings,
    UsageSettings,
    KeySettings,
    BaseSettings,
):
    """The whole configuration: flags win over `MULGIL_…` variables, those over `.env`.

    Raises:
        ValueError: a setting is of a wrong type or out of its range.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_file=".env",
        extra="ignore",  # a .env may hold other programs' variables; ours are checked below
        frozen=True,
        hide_input_in_errors=True,
        cli_hide_none_type=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
    )

    def check(self) -> None:
        """Refuse a configuration that cannot be served.

        Raises:
            ValueError: something is missing, or two settings contradict each other.
        """
        if self.lease_renew_interval * 2 > self.lease_ttl:
            raise ValueError(
                "'lease_ttl' must be at least twice 'lease_renew_interval', or leases expire between renewals"
            )
        if self.engine == "vllm":
            self._check_engine()
        elif self.node_rank:
            raise ValueError("'node_rank' is of no use without engine=vllm")
        self._check_embeddings()
        self._check_cache()
        if not self.node_rank:  # the other machines answer nobody
            self._check_keys()

    def _check_engine(self) -> None:
        if not self.model:
            raise ValueError("'model' is needed with engine=vllm (or set engine=simulated)")
        if inside := [name for name in ROLES if name in self.engine_args]:
            raise ValueError(f"'{inside[0]}' is a setting of its own, so it cannot be among 'engine_args'")
        role = {name: getattr(self, name) for name in ROLES}
        check_parallel(role | self.for_vllm() | self.engine_args)

    def _check_cache(self) -> None:
        secret = self.response_cache_secret
        if self.response_cache_url and (secret is None or len(secret.get_secret_value()) < 16):
            raise ValueError("'response_cache_url' needs 'response_cache_secret', of at least 16 characters")

    def _check_embeddings(self) -> None:
        if self.embeddings_model and self.embeddings_url:
            raise ValueError("'embeddings_model' and 'embeddings_url' both say who makes embeddings: choose one")
        if not (self.embeddings_model or self.embeddings_url):
            for name in ("embeddings_served_name", "embeddings_engine_args", "embeddings_api_key"):
                if getattr(self, name):
                    raise ValueError(f"'{name}' is of no use without 'embeddings_model' or 'embeddings_url'")
        if self.embeddings_url and not is_base_url(self.embeddings_url):
            raise ValueError(f"'embeddings_url' must be {WHAT_IT_IS}")
        if self.embeddings_url and not self.embeddings_served_name:
            raise ValueError("'embeddings_served_name' must say which model 'embeddings_url' has")
        if both := set(self.embedding_names) & set(self.model_names):
            raise ValueError(f"'{min(both)}' would name both the chat model and the embedding model")

    def _check_keys(self) -> None:
        for name in ("api_keys", "keys_file"):
            if getattr(self, name) and self.insecure:
                raise ValueError(f"'insecure' would let everybody in although '{name}' is set: choose one")
        if not (self.api_keys or self.keys_file or self.redis_url or self.insecure):
            raise ValueError(
                "no API key is configured: set MULGIL_API_KEYS, MULGIL_KEYS_FILE or MULGIL_REDIS_URL, "
                "or --insecure to serve everybody, or start with scripts/serve, which makes a key"
            )
        if self.admin_token:
            if not re.fullmatch(r"[!-~]{16,512}", self.admin_token.get_secret_value()):
                raise ValueError("'admin_token' must be 16 to 512 printable ASCII characters without spaces")
            if not (self.keys_file or self.redis_url):
                raise ValueError(
                    "'admin_token' opens routes that manage keys: 'keys_file' or 'redis_url' must say where"
                )


def problems(error: ValidationError) -> str:
    """What is wrong with the settings, a line for each; values are not repeated."""
    return "\n".join(
        f"{ENV_PREFIX}{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
        if problem["loc"]
        else problem["msg"].removeprefix("Value error, ")
        for problem in error.errors(include_url=False, include_input=False)
    )


def unknown_variables() -> list[str]:
    """The `MULGIL_…` names in the environment and in `.env` that are no setting, sorted.

    A mistyped variable is a limit that silently does not hold; pydantic-settings overlooks it.
    """
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    names = os.environ.keys() | dotenv_values(str(Settings.model_config["env_file"])).keys()
    return sorted(name for name in names if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
