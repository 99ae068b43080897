"""One request as it is observed: what it was, when each part of it began, what it used, and how it ended."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mulgil.telemetry.names import Stage

Headers = Iterable[tuple[bytes, bytes]]
Answer = Literal["reply", "stream", "socket"]
Cached = Literal["hit", "miss", "bypass"]


class Observer(Protocol):
    """What is done with observations."""

    @property
    def under_way(self) -> "Counter[Answer]":
        """Answers that are being sent, by their kind."""
        ...

    def begin(self, observed: "Observation", headers: Headers) -> None:
        """A request has come, with these headers. Must not fail."""
        ...

    def end(self, observed: "Observation") -> None:
        """It is over, and so is all that it had started. Must not fail."""
        ...


class Unobserved:
    """An observer that looks away."""

    def __init__(self) -> None:
        self.under_way: Counter[Answer] = Counter()

    def begin(self, observed: "Observation", headers: Headers) -> None:
        pass

    def end(self, observed: "Observation") -> None:
        pass


@dataclass(slots=True)
class Used:
    """What an answer used.

    Attributes:
        prompt, cached, completion: tokens that were charged; 0 if nothing was.
        longest: output tokens of its longest choice.
        finish: why it ended: a finish reason, `error`, or `refused` by the engine.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    longest: int = 0
    finish: str = "error"


@dataclass(slots=True, eq=False)
class Observation:
    """Made with the request, and handed down to whoever begins a stage of it. Each note costs less than a microsecond.

    It is over when the response is, and the generation if there is one: a stream that is kept ends its request late.

    Attributes:
        observer: is told of the beginning and the end.
        id: of the request.
        method, path: as they were sent; a turn on a WebSocket has the method `WS`.
        client_id: the request id that the client sent.
        retries: how often the client has tried before, as it says.
        route: the path as a template, once it is known.
        tenant, key, key_prefix, tier: who asks.
        operation: `chat`, `text_completion` or `embeddings`.
        model: that was asked for.
        variant: by which it is answered, by its name in the configuration; None where the model has none.
        fallback: which answers instead of the model, by its name in the configuration.
        fallback_reason: code of the error that it answers instead of.
        truncated_messages: how many the conversation has lost, so that it fits.
        status: of the response; of a turn the one that it would have had.
        error: code or type of what it failed with.
        hung_up: the client left before the answer was whole.
        cache: where its answer is from, if its model's answers are kept.
        used: what its answer used; None where nothing was generated.
        stages: which began when, of `time.perf_counter`.
        ended: when the response was over.
        began_at: Unix time in nanoseconds at the first stage.
        span: of the trace, if there is one.
        trace_headers: by which others may add to the trace.
        trace_id: if it is recorded.
    """

    observer: Observer = field(default_factory=Unobserved)
    id: str = "req_none"
    method: str = "WS"
    path: str = ""
    client_id: str | None = None
    retries: int | None = None
    route: str | None = None
    tenant: str | None = None
    key: str | None = None
    key_prefix: str | None = None
    tier: str | None = None
    operation: str | None = None
    model: str | None = None
    variant: str | None = None
    fallback: str | None = None
    fallback_reason: str | None = None
    truncated_messages: int = 0
    status: int = 0
    error: str | None = None
    hung_up: bool = False
    cache: Cached | None = None
    used: Used | None = None
    stages: list[tuple[Stage, float]] = field(default_factory=list)
    ended: float = 0.0
    began_at: int = field(default_factory=time.time_ns)
    span: Any = None
    trace_headers: Mapping[str, str] | None = None
    trace_id: str | None = None
    _answer: Answer | None = None
    _open: int = 1
    _turns: int = 0

    def begin(self, stage: Stage) -> None:
        """The stage before is over, and this one begins."""
        if not self.stages or self.stages[-1][0] != stage:
            self.stages.append((stage, time.perf_counter()))

    def asks(self, operation: str, model: str) -> "Observation":
        """It is about this; gives itself."""
        self.operation, self.model = operation, model
        return self

    def falls_back(self, fallback: str, reason: str) -> None:
        """*fallback* answers, of the configuration, instead of an error with the code *reason*.

        The variant stays what it was: it is the one that did not answer.
        """
        self.fallback, self.fallback_reason, self.error = fallback, reason, None

    def generates(self, stage: Stage) -> None:
        """*stage* begins, of something that may outlive the response; to be released when that ends."""
        self._open += 1
        self.begin(stage)

    def answers(self, status: int, kind: Answer = "reply") -> None:
        """The response begins."""
        self.status, self._answer = status, kind
        self.observer.under_way[kind] += 1

    def answered(self) -> None:
        """The response is over, or there will be none."""
        self.ended = time.perf_counter()
        if self._answer is not None:
            self.observer.under_way[self._answer] -= 1
        self.release()

    def release(self) -> None:
        """What it generates has ended."""
        self._open -= 1
        if not self._open:
            self.observer.end(self)

    def turn(self, route: str) -> "Observation":
        """A request within this one: a turn on a WebSocket, which *route* has opened."""
        self._turns += 1
        turn = Observation(
            self.observer,
            f"{self.id}.{self._turns}",
            path=self.path,
            route=route,
            tenant=self.tenant,
            key=self.key,
            key_prefix=self.key_prefix,
            tier=self.tier,
        )
        turn.begin("read")
        parent = [(name.encode(), value.encode()) for name, value in (self.trace_headers or {}).items()]
        self.observer.begin(turn, parent)
        return turn

    @property
    def is_socket(self) -> bool:
        """A WebSocket connection, which lasts as long as people talk."""
        return self._answer == "socket"

    @property
    def began(self) -> float:
        """When it came, of `time.perf_counter`."""
        return self.stages[0][1]

    @property
    def over(self) -> float:
        """When the response, or what outlived it, was over."""
        return max(self.ended, self.stages[-1][1])

    def spans(self) -> Iterable[tuple[Stage, float, float]]:
        """Its stages with their beginnings and ends; they leave no gap."""
        ends = [begin for _, begin in self.stages[1:]]
        for (stage, begin), end in zip(self.stages, [*ends, self.over], strict=True):
            yield stage, begin, end

    @property
    def first_token_after(self) -> float | None:
        """Seconds from the first byte until the first token was made; None if none was."""
        return next((begin - self.began for stage, begin in self.stages if stage == "decode"), None)
