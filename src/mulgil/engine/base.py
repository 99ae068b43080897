"""The engine port: what the gateway needs of an engine, and what an engine promises."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from mulgil.schemas.chat import ChatCompletionRequest

StopCause = Literal["stop", "length", "tool_calls", "content_filter", "abort"]


@dataclass(frozen=True, slots=True)
class ChoiceSnapshot:
    """One choice so far.

    Attributes:
        text: the whole text so far; a later snapshot's text begins with it. Never half a character.
        tokens: number of output tokens so far, the end-of-sequence token included.
        finish_reason: why it ended; None while it grows. `abort` only after `Engine.abort`.
    """

    text: str = ""
    tokens: int = 0
    finish_reason: StopCause | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A generation so far, every choice of it. A newer snapshot makes all older ones superfluous.

    Attributes:
        choices: in index order.
        cached_tokens: prompt tokens that came out of the prefix cache.
    """

    choices: tuple[ChoiceSnapshot, ...]
    cached_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        """Output tokens of all choices together."""
        return sum(choice.tokens for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is validated, rendered and tokenised: ready to be admitted and run.

    Attributes:
        id: random, ours, unique; never a client's.
        prompt_token_ids: exactly what the engine will be given.
        max_tokens: most tokens the engine will make for one choice; always set, and within the context.
        choices: number of choices.
        payload: what the adapter that prepared it needs again; opaque to everyone else.
    """

    id: str
    prompt_token_ids: list[int]
    max_tokens: int
    choices: int
    payload: object

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine is doing.

    Attributes:
        unfinished: requests given to the engine and not finished: running or waiting there.
    """

    unfinished: int


class Engine(Protocol):
    """A language model that answers one tokenised request with a text that only grows.

    Every error that leaves an engine is a `mulgil.errors.MulgilError`.
    """

    @property
    def max_model_len(self) -> int:
        """Context length in tokens: prompt and answer together."""
        ...

    @property
    def dead(self) -> bool:
        """Whether the engine is beyond help. Cheap: it is asked on every request."""
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
        self, request: ChatCompletionRequest, *, tenant: str, default_max_tokens: int | None = None
    ) -> Prepared:
        """Render and tokenise.

        Args:
            request: what to answer.
            tenant: keeps its prefix cache apart from every other tenant's.
            default_max_tokens: longest answer where the request sets none; None is the engine's own.

        Raises:
            ContextLengthError: the prompt leaves no room for an answer.
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

        An unknown or finished id is no error.
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
