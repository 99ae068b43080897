"""The report: what was measured, as Markdown."""

from collections.abc import Iterator, Sequence

from bench.bars import Bar, all_bars
from bench.contenders import LITELLM, MULGIL, VLLM_SERVE
from bench.figures import Spread
from bench.plans import TINY
from bench.readings import Place, Readings

_VERDICTS = {True: "pass", False: "**fail**", None: "not measured"}
_DISTURBING = 0.2
_HEAD = """\
# Benchmarks

Mulgil with every guard on (10 keys, all four budgets of key and tenant in Valkey over TCP) beside `vllm serve` with
none (statistics and access log off, which is its fastest), LiteLLM's proxy in front of that `vllm serve`, and the bare
engine: `AsyncLLM.generate` in one process, prompts tokenised beforehand, statistics off, nothing sent. The engine's
arguments are the same for all. Two models: SmolLM2-135M, and `tiny`, two random layers with its tokenizer.

All contenders run at the same time and idle while another is measured; they take turns (A B B A …), and every ratio is
of two that were measured one right after the other. Figures are medians, with the least and the most in brackets.
Tokens are as the server counts them in `usage`. Of CPU and memory only the API process's are counted, not those of the
engine's processes. TTFT is to the first event with text. A gap is the time between two reads that brought events.

On two cores the engine, the API process and the load generator share the processor, so absolute figures say little;
ratios do.
"""


def text(readings: Readings, plots: Sequence[str]) -> str:
    """The whole report.

    Args:
        readings: what was measured.
        plots: paths of the plots, as seen from the report.
    """
    sections = (_about(readings), _bars(readings), _serving(readings), _first_token(readings), _layers(readings))
    lines = [_HEAD, *(line for section in sections for line in section)]
    lines += ["", "## Plots", "", *(f"![{path}]({path})" for path in plots)]
    return "\n".join(lines).rstrip() + "\n"


def _about(readings: Readings) -> Iterator[str]:
    found = readings.machine
    if not found:
        return
    quick = " --quick" if found["quick"] else ""
    yield "## Machine, versions, commands"
    yield ""
    yield f"- `scripts/bench{quick}` at commit {found['commit']}, {found['time']}, {found['minutes']:.0f} minutes"
    yield (
        f"- {found['processor']}, {found['cores']} cores, {found['memory'] / 2**30:.0f} GiB; {found['system']}; "
        f"Python {found['python']}"
    )
    yield f"- {found['busy']:.0%} of the processor were busy with something else at the start; load {found['load']:.1f}"
    yield "- " + ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    yield f"- LiteLLM: {found['litellm'] or 'not installed'}"
    if results := [one for one in readings.results if one.contender != LITELLM]:
        disturbed = sum(one.others > _DISTURBING for one in results)
        share = f"{disturbed} of {len(results)} loads"
        yield f"- disturbed by something else, which used more than {_DISTURBING:g} cores: {share}"
    for model, idle in readings.serving.get("idle", {}).items():
        told = ", ".join(f"{name} {share:.1%}" for name, share in idle.items())
        yield f"- share of a core that each used while idle, engine included ({model}): {told}"
    yield ""


def _bars(readings: Readings) -> Iterator[str]:
    yield "## Bars"
    yield ""
    yield from _table(("", "measured", "bar", "", "note"), [_bar(bar) for bar in all_bars(readings)])


def _bar(bar: Bar) -> tuple[str, ...]:
    sign = "≥" if bar.at_least else "≤"
    shown = f"{bar.found.shown(scale=bar.scale)}{bar.unit}" if bar.found else "–"
    return bar.name, shown, f"{sign} {bar.bound * bar.scale:,g}{bar.unit}", _VERDICTS[bar.passed], bar.note


def _serving(readings: Readings) -> Iterator[str]:
    heads = (
        *("streams", "", "tokens/s", "TTFT p50, ms", "TTFT p99, ms", "gap p99, ms"),
        *("API CPU, s per 1,000 tokens", "engine CPU, likewise", "RSS, MB"),
    )
    groups: dict[tuple[str, bool], list[Place]] = {}
    for place in readings.places():
        if place.kind == "speed":
            groups.setdefault((place.model, place.streamed), []).append(place)
    for (model, streamed), places in groups.items():
        yield f"## {model}, {'streamed' if streamed else 'plain'}"
        yield ""
        ordered = sorted(places, key=lambda place: place.streams)
        yield from _table(
            heads, [_row(readings, place, name) for place in ordered for name in readings.contenders(place)]
        )


def _row(readings: Readings, place: Place, contender: str) -> tuple[str, ...]:
    def shown(metric: str, digits: int, scale: float = 1.0) -> str:
        return _shown(readings.spread(place, contender, metric), digits, scale)

    proxy = contender == LITELLM
    return (
        str(place.streams),
        contender,
        shown("tokens/s", 0),
        shown("TTFT p50", 1, 1_000),
        shown("TTFT p99", 1, 1_000),
        shown("gap p99", 1, 1_000) if place.streamed else "–",
        shown("CPU", 4),
        "–" if proxy else shown("engine CPU", 3),
        shown("RSS", 0, 1e-6),
    )


def _first_token(readings: Readings) -> Iterator[str]:
    places = [place for place in readings.places() if place.kind == "ttft"]
    if not places:
        return
    yield "## Time to the first token"
    yield ""
    yield "One stream, four tokens an answer, one answer after the other."
    yield ""
    rows = [
        (
            place.model,
            name,
            _shown(readings.spread(place, name, "TTFT p50"), 2, 1_000),
            _shown(readings.spread(place, name, "TTFT p99"), 2, 1_000),
        )
        for place in places
        for name in readings.contenders(place)
    ]
    yield from _table(("model", "", "TTFT p50, ms", "TTFT p99, ms"), rows)
    starts = [
        (model, *(f"{found[name]:.1f}" if name in found else "–" for name in (MULGIL, VLLM_SERVE, LITELLM)))
        for model, found in readings.serving.get("starts", {}).items()
    ]
    yield "Seconds from the start of the process until it was ready:"
    yield ""
    yield from _table(("model", MULGIL, VLLM_SERVE, LITELLM), starts)
    yield from _preparation(readings)


def _preparation(readings: Readings) -> Iterator[str]:
    first = readings.spread(Place(TINY, 1, "ttft"), MULGIL, "TTFT p50")
    rows = [
        (
            f"{found['tokens']:,.0f}",
            f"{found['seconds'] * 1000:.2f}",
            f"{found['seconds'] / first.median:.0%}" if first and index == 0 else "–",
        )
        for index, found in enumerate(readings.serving.get("preparation", ()))
    ]
    if rows:
        yield "What the chat template and the tokenizer take of it:"
        yield ""
        yield from _table(("prompt, tokens", "ms", f"share of Mulgil's TTFT p50, {TINY}"), rows)


def _layers(readings: Readings) -> Iterator[str]:
    if not readings.layers:
        return
    yield "## Layers"
    yield ""
    yield "One process, 32 streams of 200 tokens. The last row is the load generator's own ceiling."
    yield ""
    heads = ("", "chunks/s", "tokens/s", "CPU, s per 1,000 chunks", "load generator, share of a core")
    yield from _table(heads, list(_chunk_rows(readings)))
    yield "64 callers; a pair is a reserve and a settle of eight limits; *paced*: 5,000 pairs/s asked for in all."
    yield ""
    yield from _table(("", "a second", "p50, ms", "p99, ms"), list(_store_rows(readings)))
    yield "Streams that wait for their first token, with a comment line each second."
    yield ""
    rows = [
        (
            f"{one['streams']:,}",
            f"{one['bytes_each'] / 1000:.1f}",
            f"{one['busy']:.0%}",
            f"{one['late'][0] * 1000:.0f}",
            f"{one['late'][1] * 1000:.0f}",
        )
        for one in readings.layers["idle"]
    ]
    yield from _table(("streams", "kB each", "share of a core", "late p50, ms", "late p99, ms"), rows)
    costs = {name: Spread.of([one[name] for one in readings.layers["keys"]]) for name in ("few", "many")}
    few, many = (costs[name].shown(0, 1e6) for name in ("few", "many"))
    yield f"A plain answer of one token, one after the other: {few} µs with 10 known keys, {many} µs with 10,000."


def _chunk_rows(readings: Readings) -> Iterator[tuple[str, ...]]:
    found: dict[str, list[dict[str, float]]] = {}
    for one in readings.layers["chunks"]:
        found.setdefault(one["contender"], []).append(one)
    for name, each in found.items():
        events, tokens, cpu, generator = (
            Spread.of([one[field] for one in each]) for field in ("events", "tokens", "cpu", "generator")
        )
        yield name, events.shown(0), tokens.shown(0), cpu.shown(4), f"{generator.median:.0%}"


def _store_rows(readings: Readings) -> Iterator[tuple[str, ...]]:
    for name, rounds in readings.layers["stores"].items():
        for paced in (False, True):
            chosen = [one for one in rounds if one["paced"] is paced]
            if chosen:
                rate, p50, p99 = (Spread.of([one[field] for one in chosen]) for field in ("rate", "p50", "p99"))
                title = f"{name}, paced" if paced else name
                yield title, rate.shown(0), p50.shown(2, 1_000), p99.shown(2, 1_000)


def _shown(spread: Spread | None, digits: int, scale: float) -> str:
    return spread.shown(digits, scale) if spread else "–"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
