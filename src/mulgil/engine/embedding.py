"""The embedding port: what the embedding gateway needs of whatever turns texts into vectors."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from mulgil.engine.load import Load
from mulgil.errors import InvalidFieldError
from mulgil.schemas.embedding import EmbeddingRequest

T = TypeVar("T")
U = TypeVar("U")

Vector: TypeAlias = "array[float]"
"""32-bit floats (typecode `f`) in the machine's own byte order."""


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """Inputs that are validated and counted: ready to be admitted and embedded.

    Attributes:
        counts: tokens of each input, in order, the model's own begin and end tokens included.
        payload: what the adapter that prepared them needs again; opaque to everyone else.
        trace_headers: by which another server may add to the trace of the request; None without one.
    """

    counts: tuple[int, ...]
    payload: object
    trace_headers: Mapping[str, str] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all inputs together."""
        return sum(self.counts)


class Embedder(Protocol):
    """A model that turns each text into one vector.

    Every error that leaves it is a `mulgil.errors.MulgilError`.
    """

    @property
    def max_model_len(self) -> int | None:
        """Longest input in tokens; None where that is not known here."""
        ...

    @property
    def dead(self) -> bool:
        """Whether it is beyond help. Cheap: it is asked on every request."""
        ...

    @property
    def progress(self) -> int | None:
        """A count that grows with everything the engine makes; None while it has nothing to do."""
        ...

    async def start(self) -> None:
        """Load the model. Returns when it can serve; never blocks the event loop for long.

        Raises:
            EngineUnavailableError: it cannot be started; the message says why.
        """
        ...

    async def stop(self) -> None:
        """Free everything. Requests still running end with an error first. Safe to call twice."""
        ...

    async def prepare(self, request: EmbeddingRequest) -> PreparedInputs:
        """Validate what only the model knows, and count the tokens, exactly.

        Raises:
            ContextLengthError: an input is longer than the model's context; `param` names it.
            UnsupportedParameterError: `dimensions`, which this model does not have.
            MulgilError: the request cannot be served, for a reason that is the client's to mend.
        """
        ...

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """The token ids of *text*, however long it is.

        Args:
            text: any text.
            special: with the begin and end tokens that the model wants around an input.
        """
        ...

    async def embed(self, prepared: PreparedInputs) -> list[Vector]:
        """One vector for each input, in order. A call that is cancelled leaves nothing running.

        Raises:
            EngineUnavailableError: it is dead or died meanwhile, or cannot be reached.
            EngineError: it failed this request; others go on.
        """
        ...

    async def check(self) -> None:
        """A round trip through it.

        Raises:
            EngineUnavailableError: it is dead, or did not answer in time.
        """
        ...

    def load(self) -> Load:
        """What it is doing at this moment."""
        ...


async def in_order(work: Callable[[int, T], Awaitable[U]], items: Sequence[T], *, at_once: int) -> list[U]:
    """`work(index, item)` of every item, a few *at_once*; results in the order of the items.

    The first failure, or the caller's cancellation, cancels the rest, which has ended when this returns.
    """
    results: list[U | None] = [None] * len(items)
    waiting = iter(enumerate(items))

    async def one_after_the_other() -> None:
        for index, item in waiting:
            results[index] = await work(index, item)

    workers = [asyncio.create_task(one_after_the_other()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
    return results  # type: ignore[return-value]  # each has been replaced


def check_token_ids(request: EmbeddingRequest, size: int) -> None:
    """Refuse token ids that the model does not have: they are of another model's vocabulary.

    Raises:
        InvalidFieldError: one of them is *size* or more.
    """
    for index, entry in enumerate(request.inputs):
        if not isinstance(entry, str) and (largest := max(entry)) >= size:
            path = request.path(index)
            raise InvalidFieldError(
                f"Invalid '{path}': token id {largest} is outside the vocabulary of this model, which has {size} "
                "tokens. Token ids of another model's tokenizer mean nothing here: send strings "
                "(LangChain: check_embedding_ctx_length=False).",
                param=path,
                code="invalid_value",
            )
