"""The whole suite: measures, writes the figures, the report and the plots.

    python -m bench.suite [--quick] [--only serving,layers]

`scripts/bench` sets everything up and runs it.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import layers, machine, plots, report
from bench.contenders import (
    BARE_ENGINE,
    LITELLM_PROGRAM,
    MODEL,
    Contender,
    InProcess,
    KnownKeys,
    bare_engine,
    litellm,
    mulgil,
    vllm_serve,
)
from bench.load import Load
from bench.measure import idle_cpu, interleaved, written
from bench.plans import FULL, QUICK, SMOLLM2, TINY, Plan
from bench.readings import Readings
from bench.servers import ROOT, say, scratch
from bench.stores import valkey
from bench.tiny_model import prepare_tiny_model
from mulgil.demo_model import prepare_demo_model
from mulgil.quickstart import cache_folder

_PARTS = ("serving", "layers")
_IDLE_WATCHED = 3.0


def models() -> dict[str, Path]:
    """The folders of both models, made ready where they are missing."""
    demo = prepare_demo_model(cache_folder(), say)
    return {TINY: prepare_tiny_model(cache_folder(), demo), SMOLLM2: demo}


@contextmanager
def started(folder: Path, model: Path) -> Iterator[dict[str, Contender]]:
    """All contenders with one model, started one after another, and warmed up."""
    with ExitStack() as stack:
        redis_url, _ = stack.enter_context(valkey())
        folder.mkdir()
        gateway = stack.enter_context(mulgil(folder / "mulgil", redis_url, KnownKeys.made(10, folder), model))
        plain = stack.enter_context(vllm_serve(folder / "vllm", model))
        found: list[Contender] = [gateway, plain, stack.enter_context(bare_engine(folder / "bare", model))]
        if LITELLM_PROGRAM.exists():
            found.append(stack.enter_context(litellm(folder / "litellm", plain)))
        for contender in found:
            say(f"{contender.name} was ready after {contender.server.started_in:.1f} s")
            for streamed in (True, False):
                load = Load(port=0, model=MODEL, streams=8, requests=2, tokens=20, streamed=streamed)
                contender.answer(load)
        yield {contender.name: contender for contender in found}


def serving(plan: Plan, folder: Path) -> dict[str, object]:
    """Every cell of the plan, model by model."""
    results: list[dict[str, object]] = []
    starts: dict[str, dict[str, float]] = {}
    idle: dict[str, dict[str, float]] = {}
    prepared: list[dict[str, float]] = []
    for model, path in models().items():
        if not (cells := plan.of(model)):
            continue
        with started(folder / f"m{len(starts)}", path) as contenders:
            starts[model] = {name: each.server.started_in for name, each in contenders.items()}
            idle[model] = idle_cpu(contenders, _IDLE_WATCHED)
            results += [written(result) for result in interleaved(cells, contenders)]
            bare = contenders[BARE_ENGINE]
            if model == TINY and isinstance(bare, InProcess):
                prepared = layers.preparation(bare)
    return {"results": results, "starts": starts, "idle": idle, "preparation": prepared}


def run(plan: Plan, parts: Mapping[str, bool], target: Path) -> None:
    """Measure the *parts*, and tell all that is known in *target*: what is not measured now is of an earlier run."""
    results = target / "results"
    results.mkdir(parents=True, exist_ok=True)
    begun, about = time.monotonic(), machine.described()
    with scratch() as folder:
        if parts["serving"]:
            _write(results / "serving.json", serving(plan, folder))
        if parts["layers"]:
            _write(results / "layers.json", layers.measured(folder, plan))
    _write(results / "machine.json", {**about, "minutes": (time.monotonic() - begun) / 60, "quick": plan is QUICK})
    tell(target)


def tell(target: Path) -> None:
    """Write report and plots of what was measured."""
    readings = Readings.read(target / "results")
    drawn = plots.draw(readings, target / "plots")
    (target / "report.md").write_text(report.text(readings, drawn))
    say(f"the report is in {(target / 'report.md').relative_to(ROOT)}")


def _write(path: Path, found: Mapping[str, object]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures the gateway beside its peers.")
    parser.add_argument("--quick", action="store_true", help="under five minutes, into bench/quick")
    parser.add_argument("--only", choices=[*_PARTS, "report"], help="measure one part; or write the report anew")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started is stopped
    target = ROOT / "bench" / ("quick" if asked.quick else "")
    if asked.only == "report":
        tell(target)
        return
    run(QUICK if asked.quick else FULL, {part: asked.only in (None, part) for part in _PARTS}, target)


if __name__ == "__main__":
    main()
