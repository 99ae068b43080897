"""The engine port: what the gateway needs of an engine, or of whoever answers in its place, and what they promise."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mulgil.engine.load import Load
from mulgil.engine.lora import Adapter
from mulgil.engine.snapshot import Snapshot
from mulgil.errors import InvalidFieldError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest
from mulgil.schemas.tokenize import TokenizeRequest

TextRequest = ChatCompletionRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt.

    Attributes:
        token_ids: exactly what the engine will be given. Of a prompt that a server elsewhere tokenises only the number
            of them means something.
        max_tokens: most tokens that the engine will make for one choice of it; within the context.
    """

    token_ids: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is validated, rendered and tokenised: ready to be admitted and run.

    Attributes:
        id: random, ours, unique; never a client's.
        prompts: one for a chat, one or more for completions.
        choices: number of choices of each prompt.
        payload: what the adapter that prepared it needs again; opaque to everyone else.
        dropped_messages: how many of a conversation were left out, so that it fits.
        priority: among those that wait inside the engine the lower one comes first.
        trace_headers: by which the engine may add to the trace of the request; None without one.
        adapter: the LoRA adapter that answers it, in the version of that moment; None for the model alone.
    """

    id: str
    prompts: tuple[Prompt, ...]
    choices: int
    payload: object
    dropped_messages: int = 0
    priority: int = 0
    trace_headers: Mapping[str, str] | None = None
    adapter: Adapter | None = None

    @property
    def prompt_tokens(self) -> int:
        """Length of all prompts together."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def most_output_tokens(self) -> int:
        """The most tokens that the engine can make for it."""
        return self.choices * sum(prompt.max_tokens for prompt in self.prompts)

    @property
    def width(self) -> int:
        """Number of choices of all prompts together."""
        return self.choices * len(self.prompts)


class Answerer(Protocol):
    """Whoever answers one request with a text that only grows: an engine, or a server elsewhere.

    Every error that leaves it is a `mulgil.errors.MulgilError`.
    """

    async def prepare(self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None) -> Prepared:
        """Render and tokenise. A chat whose `truncation` is `auto` loses its oldest turns until it fits.

        Args:
            request: what to answer.
            tenant: keeps its prefix cache apart from every other tenant's.
            default_max_tokens: longest answer where the request sets none; None is the engine's own.

        Raises:
            ContextLengthError: the prompt leaves no room for an answer, or not the room that was asked for.
            MulgilError: the request cannot be served, for a reason that is the client's to mend.
        """
        ...

    def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        """Run *prepared*. The first snapshot is empty and says: the engine has accepted the request.

        The last snapshot has a finish reason in every choice, and no snapshot after it.
        An iterator that is closed or cancelled early aborts the request.

        Raises:
            EngineUnavailableError: the engine is dead or died meanwhile.
            EngineError: the engine failed this request; others go on.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request early: its iterator gets a last snapshot, finish reason `abort`, exact counts.

        An unknown or finished id is no error. A server elsewhere may not tell its counts before the end; those of its
        last snapshot are then the least that it has made.
        """
        ...


class Engine(Answerer, Protocol):
    """A language model of this process, with its tokenizer and its health."""

    @property
    def max_model_len(self) -> int:
        """Context length in tokens: prompt and answer together."""
        ...

    @property
    def dead(self) -> bool:
        """Whether the engine is beyond help. Cheap: it is asked on every request."""
        ...

    @property
    def progress(self) -> int | None:
        """A count that grows with everything the engine makes; None while it has nothing to do."""
        ...

    async def start(self) -> None:
        """Load the model. Returns when the engine can serve; never blocks the event loop for long.

        Raises:
            EngineUnavailableError: it cannot be started; the message says why.
        """
        ...

    async def stop(self) -> None:
        """Free everything. Generations still running end with an error first. Safe to call twice."""
        ...

    async def prepare(
        self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None, adapter: str | None = None
    ) -> Prepared:
        """As `Answerer.prepare`. The tokens are the same ones whatever *adapter*, by its name, is to answer.

        Raises:
            ModelNotFoundError: there is no such adapter, or no more.
            MulgilError: as `Answerer.prepare`.
        """
        ...

    async def load_adapter(self, adapter: Adapter) -> None:
        """Have *adapter* ready, in the place of one that has its name, if there is.

        What was prepared with the one before still ends with that. Nothing happens if it is the same version. All
        requests may stand still while it is loaded.

        Raises:
            InvalidFieldError: the engine cannot use it, or its files are of another version by now; names `path`, and
                the reason. The one before stays.
            AdapterConflictError: too many that were replaced or unloaded are still needed by running requests.
            EngineUnavailableError: the engine is dead or did not answer in time.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Prepare nothing with this adapter any more. An unknown name is no error.

        What was prepared with it still ends with it; its memory is free when the last of that has ended.

        Raises:
            EngineUnavailableError: the engine is dead.
        """
        ...

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        """The token ids of a text, or of a conversation as `prepare` would render it.

        Raises:
            ContextLengthError: the conversation does not fit.
        """
        ...

    async def detokenize(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token; together they are the text of all.

        Raises:
            InvalidFieldError: there is no such token.
        """
        ...

    async def check(self) -> None:
        """A round trip through the engine.

        Raises:
            EngineUnavailableError: it is dead, or did not answer in time.
        """
        ...

    def load(self) -> Load:
        """What it is doing at this moment."""
        ...


def check_vocabulary(token_ids: Sequence[int], size: int, *, param: str) -> None:
    """Refuse ids that a vocabulary of *size* tokens does not have.

    Raises:
        InvalidFieldError: there is one.
    """
    if token_ids and (largest := max(token_ids)) >= size:
        raise InvalidFieldError(
            f"Invalid '{param}': there is no token {largest}; the model's vocabulary has {size} tokens.",
            param=param,
            code="invalid_value",
        )


def longest_answer(request: TextRequest, default_max_tokens: int | None, engine_default: int) -> int:
    """Most tokens to make for one choice of *request*, as far as the context allows.

    Args:
        request: what the client asked for; 0 is 1, since no engine can make nothing.
        default_max_tokens: the tier's, where nothing is asked for.
        engine_default: the engine's own.
    """
    if request.output_tokens is not None:
        return max(request.output_tokens, 1)
    default = default_max_tokens or engine_default
    return min(request.usual_tokens or default, default)
