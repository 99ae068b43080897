"""The bars that the gateway must clear, and whether it did."""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.contenders import BARE_ENGINE, LITELLM, MULGIL, STARLETTE, VLLM_SERVE
from bench.figures import Spread
from bench.layers import SIMULATED
from bench.plans import SMOLLM2, TINY
from bench.readings import Place, Readings

_STREAMS = (1, 8, 32, 128)


@dataclass(frozen=True)
class Bar:
    """One promise.

    Attributes:
        name: what is compared.
        bound: what it must reach, or stay under.
        at_least: which of the two.
        found: what was measured; None where it was not.
        scale: by which figures are shown multiplied.
        unit: they are shown in.
        note: what helps to judge it.
    """

    name: str
    bound: float
    at_least: bool
    found: Spread | None
    scale: float = 1.0
    unit: str = ""
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """Whether the median clears it; None where nothing was measured."""
        if self.found is None:
            return None
        return self.found.median >= self.bound if self.at_least else self.found.median <= self.bound


def all_bars(readings: Readings) -> list[Bar]:
    """Every bar, measured or not."""
    groups = (_throughput, _processor, _first_token, _chunks, _stores, _idle, _keys)
    return [bar for group in groups for bar in group(readings)]


def _throughput(readings: Readings) -> Iterator[Bar]:
    for model, bound, streams in ((TINY, 1.15, (32, 128)), (SMOLLM2, 1.0, (1, 8, 32))):
        for number in streams:
            place = Place(model, number)
            limit = readings.ratio(place, "tokens/s", BARE_ENGINE, VLLM_SERVE)
            note = f"the bare engine, which sends nothing, reaches {limit.shown()}" if limit else ""
            found = readings.ratio(place, "tokens/s", MULGIL, VLLM_SERVE)
            yield Bar(f"output tokens/s ÷ vllm serve, {model}, {_number(number)}", bound, True, found, note=note)


def _processor(readings: Readings) -> Iterator[Bar]:
    for beside, bound in ((VLLM_SERVE, 0.75), (BARE_ENGINE, 1.35)):
        for number in _STREAMS:
            place = Place(TINY, number)
            found = readings.ratio(place, "CPU", MULGIL, beside)
            other = readings.ratio(place, "CPU", VLLM_SERVE, beside)
            note = f"vllm serve: {other.shown()}" if other and beside == BARE_ENGINE else ""
            yield Bar(f"API CPU per 1,000 tokens ÷ {beside}, {TINY}, {_number(number)}", bound, False, found, note=note)


def _first_token(readings: Readings) -> Iterator[Bar]:
    for model in (TINY, SMOLLM2):
        place = Place(model, 1, "ttft")
        found = readings.compared(place, "TTFT p99", (MULGIL, VLLM_SERVE), lambda one, other: one - other)
        yield Bar(f"TTFT p99 − vllm serve's, {model}, 1 stream", 0.002, False, found, 1_000, " ms")
    for model in (TINY, SMOLLM2):
        for metric in ("TTFT p50", "TTFT p99"):
            three = (LITELLM, MULGIL, BARE_ENGINE)
            found = readings.compared(Place(model, 1, "ttft"), metric, three, _added)
            yield Bar(f"{metric} added to the bare engine's, LiteLLM ÷ Mulgil, {model}", 10, True, found)


def _added(proxy: float, gateway: float, bare: float) -> float:
    """How many times as much the proxy adds. What adds nothing measurable is taken to add 10 µs."""
    return (proxy - bare) / max(gateway - bare, 1e-5)


def _chunks(readings: Readings) -> Iterator[Bar]:
    by_name: dict[str, dict[int, float]] = {}
    for one in readings.layers.get("chunks", ()):
        by_name.setdefault(one["contender"], {})[one["repetition"]] = one["events"]
    gateway = by_name.get(SIMULATED, {})
    limits = {name: values for name, values in by_name.items() if name.startswith(STARLETTE)} or {STARLETTE: {}}
    for name, limit in limits.items():
        ratios = [gateway[number] / limit[number] for number in sorted(gateway.keys() & limit.keys())]
        found = Spread.of(ratios) if ratios else None
        yield Bar(f"chunks/s of one process, simulated engine ÷ {name}", 0.6, True, found)


def _stores(readings: Readings) -> Iterator[Bar]:
    for name in ("Valkey, TCP", "Valkey, Unix socket"):
        rounds = readings.layers.get("stores", {}).get(name, ())
        rates = [one["rate"] for one in rounds if not one["paced"]]
        paced = [one for one in rounds if one["paced"]]
        title = f"reserve + settle, {name}, 64 callers"
        yield Bar(f"{title}: pairs/s", 5_000, True, Spread.of(rates) if rates else None)
        note = f"at {min(one['rate'] for one in paced):,.0f} of 5,000 pairs/s asked for" if paced else ""
        late = Spread.of([one["p99"] for one in paced]) if paced else None
        yield Bar(f"{title}, at 5,000 pairs/s: p99", 0.002, False, late, 1_000, " ms", note)


def _idle(readings: Readings) -> Iterator[Bar]:
    found = readings.layers.get("idle", ())
    for one in found:
        name = f"memory for each of {one['streams']:,} idle streams"
        yield Bar(name, 60_000, False, Spread.of([one["bytes_each"]]), 0.001, " kB")
    if not found:
        yield Bar("memory for each idle stream", 60_000, False, None, 0.001, " kB")


def _keys(readings: Readings) -> Iterator[Bar]:
    ratios = [one["many"] / one["few"] for one in readings.layers.get("keys", ())]
    yield Bar("time per request, 10,000 ÷ 10 known keys", 1.05, False, Spread.of(ratios) if ratios else None)


def _number(streams: int) -> str:
    return "1 stream" if streams == 1 else f"{streams} streams"
