"""The plots of the report."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.contenders import BARE_ENGINE, LITELLM, MULGIL, VLLM_SERVE
from bench.plans import SMOLLM2, TINY
from bench.readings import Place, Readings

_COLOURS = {MULGIL: "#0b6e4f", VLLM_SERVE: "#c1666b", LITELLM: "#d4a017", BARE_ENGINE: "#48639c"}
_STREAMS = (1, 8, 32, 128)

Draw = Callable[[Readings, Axes, str], bool]


def draw(readings: Readings, folder: Path) -> list[str]:
    """Draw what there are figures for into *folder*; the paths, from beside the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update(
        {"svg.hashsalt": "mulgil", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    plots: dict[str, Draw] = {
        "throughput": _lines("tokens/s", "output tokens/s"),
        "ttft": _lines("TTFT p50", "TTFT p50, s", logarithmic=True),
        "cpu": _lines("CPU", "API process: CPU seconds per 1,000 tokens", logarithmic=True),
        "overhead": _overhead,
    }
    return [
        f"{folder.name}/{name}.svg" for name, plot in plots.items() if _drawn(readings, plot, folder / f"{name}.svg")
    ]


def _drawn(readings: Readings, plot: Draw, path: Path) -> bool:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = [plot(readings, axes, model) for axes, model in ((left, TINY), (right, SMOLLM2))]
    for axes, any_figures in zip((left, right), found, strict=True):
        axes.set_visible(any_figures)
    if any(found):
        figure.savefig(path, metadata={"Date": None})
    return any(found)


def _lines(metric: str, label: str, *, logarithmic: bool = False) -> Draw:
    """A line for each contender, against the number of streams, streamed."""

    def plot(readings: Readings, axes: Axes, model: str) -> bool:
        for name, colour in _COLOURS.items():
            spreads = {number: readings.spread(Place(model, number), name, metric) for number in _STREAMS}
            found = {number: spread for number, spread in spreads.items() if spread}
            if found:
                medians = [spread.median for spread in found.values()]
                axes.plot(list(found), medians, marker="o", markersize=4, color=colour, label=name)
                least, most = ([getattr(one, end) for one in found.values()] for end in ("least", "most"))
                axes.fill_between(list(found), least, most, color=colour, alpha=0.15, linewidth=0)
        axes.set(title=model, xlabel="streams", xscale="log", ylabel=label)
        axes.set_yscale("log" if logarithmic else "linear")
        axes.set_xticks(_STREAMS, [str(number) for number in _STREAMS])
        axes.set_xticks((), minor=True)
        if lines := axes.get_lines():
            axes.legend(frameon=False)
        return bool(lines)

    return plot


def _overhead(readings: Readings, axes: Axes, model: str) -> bool:
    """What each adds to the first token of the bare engine."""
    place = Place(model, 1, "ttft")
    added = {
        (name, metric): spread.median * 1_000
        for name in (MULGIL, VLLM_SERVE, LITELLM)
        for metric in ("TTFT p50", "TTFT p99")
        if (spread := readings.compared(place, metric, (name, BARE_ENGINE), lambda one, bare: one - bare))
    }
    if not added:
        return False
    labels = ["\n".join([*name.split(), metric.removeprefix("TTFT ")]) for name, metric in added]
    bars = axes.bar(labels, list(added.values()), color=[_COLOURS[name] for name, _ in added])
    axes.bar_label(bars, fmt="%.1f")
    axes.set(title=f"{model}, 1 stream", ylabel="added to the bare engine's TTFT, ms")
    return True
