"""The settings by what they are about, each declared once: its default, its rule and the words that document it."""

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import NoDecode

from mulgil.settings.checkpoint import config_of
from mulgil.settings.fingerprint import fingerprint


def from_commas(value: Any) -> Any:
    """A list that is written a,b,c; anything else as it is."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# NoDecode: a list is written a,b,c in the environment, not as JSON.
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(from_commas)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(from_commas)]


class Group(BaseModel):
    """What belongs together. The text below a field is its documentation."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class EngineSettings(Group):
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
    """vLLM's name for how the weights are quantised, where the model's own files do not say; or how they are to be
    while they are loaded (docs/quantised.md)."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Accelerators that share each layer; must divide the model's attention heads."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Groups of accelerators that share the layers among them. Not on a CPU."""
    data_parallel_size: int = Field(default=1, ge=1)
    """Copies of the model inside this one process. They end together, which independent gateways do not."""
    distributed_executor_backend: Literal["mp", "ray"] | None = None
    """What runs the workers of a model that needs several: `mp` on this machine, or on `nnodes`; `ray` on a Ray
    cluster. Default: vLLM's choice."""
    nnodes: int = Field(default=1, ge=1)
    """Machines that the model spans without Ray. Each runs `mulgil serve` with the same settings and its own
    `node_rank`."""
    node_rank: int = Field(default=0, ge=0)
    """Which of the `nnodes` this is. Machine 0 answers requests; the others compute for it and listen on no port."""
    master_addr: str | None = None
    """Address of machine 0, as the other ones of the `nnodes` reach it."""
    master_port: int = Field(default=29_501, ge=1, le=65_535)
    """Port of machine 0 on which the `nnodes` meet."""
    engine_start_timeout: float = Field(default=1_800.0, gt=0)
    """Seconds that an engine may take to load, after which this attempt has failed: where a model spans machines,
    vLLM would wait for ever for one that is missing."""
    dtype: str = "auto"
    """Number format of weights and activations."""
    chat_template: str | None = None
    """A chat template (file, or the template itself) instead of the model's own."""
    tool_call_parser: str | None = None
    """vLLM's parser for the model's tool calls, such as `hermes`; without it requests with `tools` are refused."""
    reasoning_parser: str | None = None
    """vLLM's parser for the model's reasoning, which is then told apart as `reasoning_content`."""
    template_options: Names = ("enable_thinking", "thinking", "reasoning_effort")
    """Keys of `chat_template_kwargs` that a request may set."""
    chunk_interval: float = Field(default=0.04, ge=0, le=10)
    """Seconds between two events of a stream, at least, so that fast answers of many streams cost the server and
    their readers less; the first text and the end come at once. 0 sends each token as it is made. Of vLLM; the
    simulated engine keeps to its script."""
    stream_events_per_second: int = Field(default=1_500, ge=1)
    """Events a second of all streams together. Where there would be more, each stream gets fewer and longer ones, at
    most 0.1 s apart; `MULGIL_CHUNK_INTERVAL=0` switches this off too."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Any other vLLM engine argument, as a JSON object; wins over the settings above."""
    engine_check_interval: float = Field(default=1.0, gt=0)
    """Seconds between two round trips that prove the engine is alive."""
    engine_hung_timeout: float = Field(default=30.0, gt=0)
    """Seconds without an answer to any round trip after which the engine is rebuilt. One on a CPU whose workers compute
    is not silent: it is in the middle of a long step."""
    engine_stall_timeout: float = Field(default=120.0, gt=0)
    """Seconds in which an engine with work makes nothing, after which it is rebuilt."""
    engine_rebuilds: int = Field(default=5, ge=0)
    """Attempts in a row to rebuild a failed engine before the process ends; 0: it ends at once."""
    run_folder: Path | None = None
    """Where the engine's processes are noted, so that the next start ends what a killed gateway has left. Default:
    a folder of this user's among the temporary files."""
    engine_canary: bool = True
    """Whether one token must be made before an engine counts as ready."""
    simulated_ttft: float = Field(default=0.0, ge=0)
    """Simulated engine: seconds before the first token."""
    simulated_gap: float = Field(default=0.0, ge=0)
    """Simulated engine: seconds between two tokens."""
    simulated_kv_tokens: int | None = Field(default=None, ge=1)
    """Simulated engine: tokens of prompts and answers that it says it can hold. Default: any number."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that clients may use."""
        if self.served_model_name:
            return self.served_model_name
        return (Path(self.model).name,) if self.model else ("simulated",)

    @property
    def engine_run_folder(self) -> Path:
        """Where the engine's processes are noted."""
        return self.run_folder or Path(tempfile.gettempdir()) / f"mulgil-{os.getuid()}"

    def fingerprint(self, version: str) -> str:
        """A name for the model and the way it is served (`settings.fingerprint`); another *version* has another one."""
        return fingerprint({name: getattr(self, name) for name in EngineSettings.model_fields}, version)

    @property
    def spread(self) -> bool:
        """Whether the model needs more than one accelerator."""
        sizes = self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size, self.nnodes
        return max(sizes) > 1 or self.distributed_executor_backend == "ray"

    @property
    def quantised(self) -> bool:
        """Whether the model's weights are quantised, as far as that can be told before it is loaded."""
        return bool(self.quantization or (self.model and "quantization_config" in config_of(self.model)))

    def for_vllm(self) -> dict[str, Any]:
        """The settings that vLLM knows under the same name and that are set."""
        same: tuple[str, ...] = (
            "model", "max_model_len", "max_num_seqs", "gpu_memory_utilization", "enable_prefix_caching",
            "quantization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
            "distributed_executor_backend", "dtype",
        )  # fmt: skip
        if self.nnodes > 1:
            same += ("nnodes", "node_rank", "master_addr", "master_port")
        args = {name: value for name in same if (value := getattr(self, name)) is not None}
        args["served_model_name"] = list(self.model_names)
        if self.reasoning_parser:
            args["reasoning_parser"] = self.reasoning_parser
        return args


class EmbeddingSettings(Group):
    """Embeddings: a model of their own in this process, or another server."""

    embeddings_model: str | None = None
    """Hugging Face name or folder of an embedding model, run by a second engine of this process. With
    `engine=simulated`: any name, for vectors made of hashes. Not set: `/v1/embeddings` does not exist."""
    embeddings_served_name: Names = ()
    """Names that clients may use for it. Default: the last part of `embeddings_model`."""
    embeddings_engine_args: dict[str, Any] = Field(default_factory=dict)
    """vLLM engine arguments of the embedding model, as a JSON object. On a GPU it takes 5 % of the memory unless
    `gpu_memory_utilization` is among them."""
    embeddings_url: str | None = None
    """Base URL (`http://host:8000/v1`) of a server that makes the embeddings instead. It must offer `/tokenize` too."""
    embeddings_api_key: SecretStr | None = None
    """Key for that server."""
    embeddings_timeout: float = Field(default=30.0, gt=0)
    """Seconds that one call to that server may take."""

    @property
    def embedding_names(self) -> tuple[str, ...]:
        """The names that clients may use for the embedding model; none when there is none."""
        if self.embeddings_served_name:
            return self.embeddings_served_name
        return (Path(self.embeddings_model).name,) if self.embeddings_model else ()


class ServerSettings(Group):
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
    request_timeout: float = Field(default=60.0, gt=0)
    """Seconds from the first byte of a request to its last."""
    write_timeout: float = Field(default=60.0, gt=0)
    """Seconds that a client may leave unread what was sent to it, before its connection is closed; one that has
    vanished without a word is noticed as soon."""
    ping_interval: float = Field(default=15.0, gt=0)
    """Seconds of silence after which a stream has a comment line, so that no proxy takes it for dead."""
    heartbeat_interval: float = Field(default=60.0, gt=0)
    """Seconds of silence after which a chat stream has a chunk without content: some clients do not count comments."""
    resume_grace: float = Field(default=60.0, ge=0)
    """Seconds that a resumable stream goes on without a reader."""
    resume_retention: float = Field(default=300.0, ge=0)
    """Seconds that a resumable stream can be read after its end."""
    max_kept_streams: int = Field(default=1_000, ge=1)
    """Most resumable streams at the same time, finished ones included."""
    max_kept_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """Largest size of all finished streams together; the oldest ones go first."""
    ticket_ttl: float = Field(default=60.0, gt=0)
    """Seconds within which a ticket must be used for the first time."""
    websocket_idle: float = Field(default=600.0, gt=0)
    """Seconds without a turn after which a WebSocket is closed."""
    drain_delay: float = Field(default=0.0, ge=0)
    """Seconds after SIGTERM in which the server says that it is not ready and still serves, so that balancers
    notice in time."""
    cors_origins: Names = ()
    """Origins whose pages may call this server from a browser; `*` for any. None: CORS is off."""
    chat_page: bool = True
    """Whether `/` is a page to chat on. It asks for the key, which stays in the browser's tab."""
    max_body_bytes: int = Field(default=2 * 1024 * 1024, ge=1_024)
    """Largest request body. What is larger than the default may hold up other requests for more than 50 ms."""
    max_json_depth: int = Field(default=64, ge=4, le=512)
    """Deepest nesting of a request body."""
    max_json_parts: int = Field(default=131_072, ge=1_024)
    """Most arrays, objects and fields of objects in a request body."""
    max_output_tokens: int = Field(default=32_768, ge=1)
    """Largest `max_tokens` that a request may ask for."""
    max_choices: int = Field(default=16, ge=1, le=128)
    """Largest `n` that a request may ask for."""
    max_messages: int = Field(default=2_048, ge=1)
    """Most messages in one request."""
    max_prompts: int = Field(default=128, ge=1)
    """Most prompts in one request for completions."""
    max_tools: int = Field(default=128, ge=1)
    """Most tools in one request."""
    max_schema_bytes: int = Field(default=65_536, ge=1)
    """Largest JSON schema, regular expression or grammar that an answer may have to keep to, in bytes."""
    max_schema_depth: int = Field(default=32, ge=1, le=60)
    """Deepest nesting of such a schema."""
    max_embedding_inputs: int = Field(default=2_048, ge=1)
    """Most inputs in one request for embeddings."""
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    """What happens to a top-level field of a request body that nobody knows."""


class LimitSettings(Group):
    """Budgets, and the store they are kept in."""

    config: Path | None = None
    """The file with the tiers and models, `mulgil.toml`. Default: one tier, `default`, with the built-in limits."""
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
    max_concurrent_requests: int = Field(default=50, ge=1)
    """Most choices that the engine is given at the same time; a request with `n` choices counts as `n`."""
    max_queued_requests: int = Field(default=500, ge=0)
    """Most requests that wait for their turn; what does not fit is refused with 503."""
    queue_timeout: float = Field(default=30.0, gt=0)
    """Seconds that a request waits for its turn at most; then it is refused with 503."""
    kv_worst_case_share: float = Field(default=0.5, ge=0, le=1)
    """Share of a request's longest possible answer for which the engine's KV cache must have room before its turn.
    With 1 running requests never displace each other; with less more run at the same time."""
    limiter_on_failure: Literal["closed", "local"] = "closed"
    """When the budget store does not answer: `closed` refuses with 503; `local` keeps a share of every limit in
    this process, divided by `replicas`."""
    replicas: int = Field(default=1, ge=1)
    """How many gateways share the budget store; only `limiter_on_failure=local` asks."""


class KeySettings(Group):
    """Who may call."""

    api_keys: Secrets = ()
    """API keys, comma-separated: plain, or as `sha256:` and the hexadecimal digest."""
    insecure: bool = False
    """Serve whoever comes, without a key. For a closed network only."""
    keys_file: Path | None = None
    """The file of keys that `mulgil keys` writes; edits take effect within two seconds. With `redis_url` set, keys
    are looked up there too."""
    admin_token: SecretStr | None = None
    """What opens `/admin` and `/metrics`, at least 16 characters. Not set: there are no such routes."""
    audit_log: Path | None = None
    """File to which every change of a key or a balance is added as a line of JSON."""
