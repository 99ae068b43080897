"""Every setting, declared once: its variable, flag, default, rule and the words that document it."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
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
    """vLLM's parser for the model's tool calls."""
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


class KeySettings(_Group):
    """Who may call."""

    api_keys: Secrets = ()
    """API keys, comma-separated: plain, or as `sha256:` and the hexadecimal digest."""
    insecure: bool = False
    """Serve whoever comes, without a key. For a closed network only."""


class Settings(EngineSettings, ServerSettings, KeySettings, BaseSettings):
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
        if self.engine == "vllm" and not self.model:
            raise ValueError("'model' is needed with engine=vllm (or set engine=simulated)")
        if self.api_keys and self.insecure:
            raise ValueError("'insecure' would let everybody in although 'api_keys' is set: choose one")
        if not self.api_keys and not self.insecure:
            raise ValueError(
                "no API key is configured: set MULGIL_API_KEYS, or --insecure to serve everybody, "
                "or start with scripts/serve, which makes a key"
            )


def unknown_variables() -> list[str]:
    """The `MULGIL_…` names in the environment and in `.env` that are no setting, sorted.

    A mistyped variable is a limit that silently does not hold; pydantic-settings overlooks it.
    """
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    names = os.environ.keys() | dotenv_values(str(Settings.model_config["env_file"])).keys()
    return sorted(name for name in names if name.upper().startswith(ENV_PREFIX) and name.upper() not in known)
