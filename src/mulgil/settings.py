"""Every setting, declared once: its variable, flag, default, rule and the words that document it."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ENV_PREFIX = "MULGIL_"


def _from_commas(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# NoDecode: a list is written a,b,c in the environment, not as JSON.
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_from_commas)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_from_commas)]


class _Group(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class EngineSettings(_Group):
    """The model and the engine under it."""

    engine: Literal["vllm", "simulated"] = "vllm"
    """`vllm` runs a model; `simulated` makes deterministic text without one."""
    model: str | None = None
    """Hugging Face name or folder of the model. Needed with `engine=vllm`."""
    served_model_name: Names = ()
    """Names that clients may use, the first one being the main name. Default: the last part of `model`."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Context length in tokens, prompt and answer together. Default: the model's own."""
    default_max_tokens: int = Field(default=4_096, ge=1)
    """Longest answer, in tokens, where a request sets no `max_tokens`; also bounded by the context."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    """Most requests that the engine works on in one step."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Share of the accelerator's memory that the engine may take."""
    enable_prefix_caching: bool | None = None
    """Whether the engine keeps what it computed for a prompt's beginning. Never shared between tenants."""
    quantization: str | None = None
    """How the weights are quantised, where the model's own files do not say."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Accelerators that share each layer."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Groups of accelerators that share the layers among them."""
    data_parallel_size: int = Field(default=1, ge=1)
    """Copies of the model inside this one process."""
    distributed_executor_backend: Literal["ray", "mp", "uni", "external_launcher"] | None = None
    """What runs the workers of a model that needs several."""
    dtype: str = "auto"
    """Number format of weights and activations."""
    chat_template: str | None = None
    """A chat template (file, or the template itself) instead of the model's own."""
    tool_call_parser: str | None = None
    """vLLM's parser for the model's tool calls, which are not served yet."""
    reasoning_parser: str | None = None
    """vLLM's parser for the model's reasoning."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Any other vLLM engine argument, as a JSON object; wins over the settings above."""
    engine_check_interval: float = Field(default=1.0, gt=0)
    """Seconds between two round trips that prove the engine is alive."""
    simulated_ttft: float = Field(default=0.0, ge=0)
    """Simulated engine: seconds before the first token."""
    simulated_gap: float = Field(default=0.0, ge=0)
    """Simulated engine: seconds between two tokens."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that clients may use."""
        if self.served_model_name:
            return self.served_model_name
        return (Path(self.model).name,) if self.model else ("simulated",)

    def for_vllm(self) -> dict[str, Any]:
        """The settings that vLLM knows under the same name and that are set."""
        same = (
            "model", "max_model_len", "max_num_seqs", "gpu_memory_utilization", "enable_prefix_caching",
            "quantization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
            "distributed_executor_backend", "dtype",
        )  # fmt: skip
        args = {name: value for name in same if (value := getattr(self, name)) is not None}
        args["served_model_name"] = list(self.model_names)
        if self.reasoning_parser:
            args["reasoning_parser"] = self.reasoning_parser
        return args


class ServerSettings(_Group):
    """The listener, and what a request may look like."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8_000, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    keep_alive: int = Field(default=75, ge=65)
    """Seconds that an idle connection stays open. More than any proxy in front keeps it, or the proxy
    meets a closed connection now and then."""
    shutdown_grace: int = Field(default=30, ge=0)
    """Seconds that running requests may take to finish after SIGTERM."""
    cors_origins: Names = ()
    """Origins whose pages may call this server from a browser; `*` for any. None: CORS is off."""
    max_body_bytes: int = Field(default=2 * 1024 * 1024, ge=1_024)
    """Largest request body."""
    max_json_depth: int = Field(default=64, ge=4, le=512)
    """Deepest nesting of a request body."""
    max_output_tokens: int = Field(default=32_768, ge=1)
    """Largest `max_tokens` that a request may ask for."""
    max_choices: int = Field(default=16, ge=1, le=128)
    """Largest `n` that a request may ask for."""
    max_messages: int = Field(default=2_048, ge=1)
    """Most messages in one request."""
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    """What happens to a top-level field of a request body that nobody knows."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged. Prompts and answers never are."""


class LimitSettings(_Group):
    """Budgets, and the store they are kept in."""

    config: Path | None = None
    """The file with the tiers, `mulgil.toml`. Default: one tier, `default`, with the built-in limits."""
    redis_url: SecretStr | None = None
    """Redis or Valkey that all gateways share: budgets, and keys. Default: budgets live in the process."""
    store_timeout: float = Field(default=0.4, gt=0, le=5)
    """Seconds that one step in the budget store may take, waiting for a connection included."""
    store_connections: int = Field(default=32, ge=1)
    """Most connections to the budget store; more steps than these wait for their turn."""
    lease_ttl: float = Field(default=30.0, ge=1)
    """Seconds after which a request of a gateway that was killed no longer holds anything."""
    lease_renew_interval: float = Field(default=5.0, gt=0)
    """Seconds between two renewals of all running requests; well below `lease_ttl`."""
    limiter_on_failure: Literal["closed", "local"] = "closed"
    """When the budget store does not answer: `closed` refuses with 503; `local` keeps a share of every limit in
    this process, divided by `replicas`."""
    replicas: int = Field(default=1, ge=1)
    """How many gateways share the budget store; only `limiter_on_failure=local` asks."""


class KeySettings(_Group):
    """Who may call."""

    api_keys: Secrets = ()
    """API keys, comma-separated: plain, or as `sha256:` and the hexadecimal digest."""
    insecure: bool = False
    """Serve whoever comes, without a key. For a closed network only."""
    keys_file: Path | None = None
    """The file of keys that `mulgil keys` writes; edits take effect within two seconds. With `redis_url` set, keys
    are looked up there too."""
    admin_token: SecretStr | None = None
    """What opens `/admin`, at least 16 characters. Not set: there are no such routes."""
    audit_log: Path | None = None
    """File to which every change of a key or a balance is added as a line of JSON."""


class Settings(EngineSettings, ServerSettings, LimitSettings, KeySettings, BaseSettings):
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
        if self.engine == "vllm" and not self.model:
            raise ValueError("'model' is needed with engine=vllm (or set engine=simulated)")
        self._check_keys()

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
