"""One load on one contender, with what its process used for it; and many of them, interleaved."""

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from bench.contenders import MODEL, Contender
from bench.load import Load, Measured
from bench.servers import say


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is asked of several contenders in turn.

    Attributes:
        model: name of what they serve.
        kind: what it is for: `speed`, or `ttft`, many short answers.
        streams, requests, tokens, streamed: as in `Load`.
        contenders: names of those that take part.
        repetitions: of all of them.
    """

    model: str
    kind: str = "speed"
    streams: int
    requests: int
    tokens: int
    streamed: bool = True
    contenders: tuple[str, ...]
    repetitions: int

    @property
    def load(self) -> Load:
        """What each is asked. Every answer has all its tokens, whatever the model would say."""
        return Load(
            port=0,
            model=MODEL,
            streams=self.streams,
            requests=self.requests,
            tokens=self.tokens,
            streamed=self.streamed,
            extra={"ignore_eos": True},
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one load on one contender came to.

    Attributes:
        model, kind, streams, streamed: of the cell.
        contender: its name.
        repetition: results of one cell with the same number were measured one right after the other.
        measured: by the load generator.
        cpu: seconds that the contender's own process worked, the engine's processes not included.
        engine_cpu: seconds that the processes which it had started worked.
        rss: bytes that its own process held afterwards.
        others: cores that were busy meanwhile with something else than all these and the load generator.
    """

    model: str
    kind: str
    streams: int
    streamed: bool
    contender: str
    repetition: int
    measured: Measured
    cpu: float
    engine_cpu: float
    rss: int
    others: float

    @property
    def tokens_per_second(self) -> float:
        """Of all streams together."""
        return self.measured.tokens / self.measured.seconds

    @property
    def cpu_per_thousand(self) -> float:
        """Seconds that the contender's own process worked for 1,000 tokens."""
        return self.cpu / self.measured.tokens * 1_000


def interleaved(cells: Sequence[Cell], contenders: Mapping[str, Contender]) -> Iterator[Result]:
    """Every cell on those of its contenders that are there: A B A B, the order turned round each time."""
    for cell in cells:
        present = [contenders[name] for name in cell.contenders if name in contenders]
        for repetition in range(cell.repetitions):
            for contender in present if repetition % 2 == 0 else present[::-1]:
                yield measured(cell, contender, repetition)


def measured(cell: Cell, contender: Contender, repetition: int) -> Result:
    """One load.

    Raises:
        RuntimeError: an answer failed, or did not have as many tokens as were asked for.
    """
    before, begun = _Work.of(contender), time.monotonic()
    found = contender.answer(cell.load)
    seconds, after = time.monotonic() - begun, _Work.of(contender)
    asked = cell.streams * cell.requests * cell.tokens
    if found.failures or found.tokens != asked:
        raise RuntimeError(f"{contender.name} made {found.tokens} of {asked} tokens: {found.failures}")
    result = Result(
        model=cell.model,
        kind=cell.kind,
        streams=cell.streams,
        streamed=cell.streamed,
        contender=contender.name,
        repetition=repetition,
        measured=found,
        cpu=after.own - before.own,
        engine_cpu=after.engine - before.engine,
        rss=contender.server.usage().rss,
        others=max(0.0, (after.others - before.others) / seconds),
    )
    say(_told(result))
    return result


@dataclass(frozen=True)
class _Work:
    """Seconds that were worked so far: by a contender, by its engine, and by all that has nothing to do with them."""

    own: float
    engine: float
    others: float

    @classmethod
    def of(cls, contender: Contender) -> "_Work":
        own, engine = contender.server.usage().cpu, contender.server.offspring_cpu()
        machine, generators = psutil.cpu_times(), os.times()
        everything = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - _counted_twice(machine)
        return cls(own, engine, everything - own - engine - sum(generators[:4]))


def _counted_twice(machine: Any) -> float:
    """What the system counts as a guest's, and as a user's too."""
    return float(getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0))


def idle_cpu(contenders: Mapping[str, Contender], seconds: float) -> dict[str, float]:
    """Share of a core that each uses with its engine's processes, while nobody asks anything."""

    def used() -> dict[str, float]:
        servers = {name: each.server for name, each in contenders.items()}
        return {name: server.usage().cpu + server.offspring_cpu() for name, server in servers.items()}

    before = used()
    time.sleep(seconds)
    return {name: (cpu - before[name]) / seconds for name, cpu in used().items()}


def rebuilt(found: Mapping[str, object]) -> Result:
    """A result that has been JSON."""
    fields = dict(found)
    fields["measured"] = Measured(**fields["measured"])  # type: ignore[arg-type]  # as it was written
    return Result(**fields)  # type: ignore[arg-type]  # as above


def written(result: Result) -> dict[str, object]:
    """As it becomes JSON."""
    return dataclasses.asdict(result)


def _told(result: Result) -> str:
    ttft, gaps = result.measured.ttft, result.measured.gaps
    how = "streamed" if result.streamed else "plain"
    return (
        f"{result.model} {result.kind} {result.streams:>3} {how} #{result.repetition} {result.contender:12}"
        f"{result.tokens_per_second:8.0f} tok/s, {result.cpu_per_thousand:.4f} s/1k, "
        f"ttft {ttft[0] * 1000:.1f}/{ttft[1] * 1000:.1f} ms, gap p99 {gaps[1] * 1000:.1f} ms, "
        f"others {result.others:.1f}"
    )
