"""What a full run and a quick run measure."""

from dataclasses import dataclass

from bench.contenders import BARE_ENGINE, LITELLM, MULGIL, VLLM_SERVE
from bench.measure import Cell

TINY, SMOLLM2 = "tiny", "SmolLM2-135M"
PEERS = (MULGIL, VLLM_SERVE)
ENGINES = (*PEERS, BARE_ENGINE)
EVERYBODY = (*ENGINES, LITELLM)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured.

    Attributes:
        cells: loads on models.
        store_seconds, store_rounds: of each contender for the budget store.
        idle_streams: numbers of open streams that say nothing.
        repetitions: of the simulated engine, and of known keys.
        key_requests: of each repetition with known keys.
    """

    cells: tuple[Cell, ...]
    store_seconds: float
    store_rounds: int
    idle_streams: tuple[int, ...]
    repetitions: int
    key_requests: int

    def of(self, model: str) -> tuple[Cell, ...]:
        """The cells of one model."""
        return tuple(cell for cell in self.cells if cell.model == model)


def _speed(
    model: str, shape: tuple[int, int, int], contenders: tuple[str, ...], repetitions: int, *, streamed: bool = True
) -> Cell:
    streams, requests, tokens = shape
    return Cell(
        model=model,
        streams=streams,
        requests=requests,
        tokens=tokens,
        streamed=streamed,
        contenders=contenders,
        repetitions=repetitions,
    )


def _ttft(model: str, requests: int, repetitions: int) -> Cell:
    return Cell(
        model=model,
        kind="ttft",
        streams=1,
        requests=requests,
        tokens=4,
        contenders=EVERYBODY,
        repetitions=repetitions,
    )


_TINY_SHAPES = ((1, 5, 200), (8, 3, 200), (32, 3, 200), (128, 2, 200))
_PROXY_SHAPES = ((1, 2, 200), (8, 1, 200), (32, 1, 100), (128, 1, 50))
_SMOLLM2_SHAPES = ((1, 2, 64), (8, 1, 64), (32, 1, 48))
_SMOLLM2_PROXY_SHAPES = ((1, 1, 32), (8, 1, 16), (32, 1, 16), (128, 1, 8))

FULL = Plan(
    cells=(
        _ttft(TINY, 150, 5),
        *(_speed(TINY, shape, ENGINES, 5) for shape in _TINY_SHAPES),
        *(_speed(TINY, shape, (LITELLM,), 3) for shape in _PROXY_SHAPES),
        *(_speed(TINY, shape, ENGINES, 3, streamed=False) for shape in _TINY_SHAPES),
        *(_speed(TINY, shape, (LITELLM,), 3, streamed=False) for shape in _PROXY_SHAPES),
        _ttft(SMOLLM2, 25, 3),
        *(_speed(SMOLLM2, shape, ENGINES, 3) for shape in _SMOLLM2_SHAPES),
        _speed(SMOLLM2, (128, 1, 16), PEERS, 2),
        *(_speed(SMOLLM2, shape, (LITELLM,), 1) for shape in _SMOLLM2_PROXY_SHAPES),
        *(_speed(SMOLLM2, shape, PEERS, 2, streamed=False) for shape in _SMOLLM2_SHAPES),
        _speed(SMOLLM2, (128, 1, 16), PEERS, 1, streamed=False),
    ),
    store_seconds=3.0,
    store_rounds=3,
    idle_streams=(2_000, 5_000),
    repetitions=5,
    key_requests=1_000,
)

QUICK = Plan(
    cells=(
        _ttft(TINY, 60, 2),
        _speed(TINY, (8, 1, 200), ENGINES, 2),
        _speed(TINY, (32, 1, 200), ENGINES, 3),
        _speed(TINY, (128, 1, 100), ENGINES, 3),
        _speed(TINY, (32, 1, 50), (LITELLM,), 1),
        _speed(TINY, (32, 1, 200), PEERS, 2, streamed=False),
    ),
    store_seconds=0.7,
    store_rounds=2,
    idle_streams=(2_000,),
    repetitions=2,
    key_requests=400,
)
