"""The composition root's part for turns: the queue that the settings describe, and what it asks of the engine."""

from collections.abc import Callable

from mulgil.admission.queue import FairQueue, QueueRules
from mulgil.engine.base import Engine
from mulgil.errors import EngineUnavailableError
from mulgil.settings import Settings


def build_queue(settings: Settings, engine: Callable[[], Engine]) -> FairQueue:
    """The queue before the engine.

    Args:
        settings: the configuration.
        engine: gives the engine, or raises `EngineUnavailableError`.
    """
    rules = QueueRules(
        turns=settings.max_concurrent_requests,
        places=settings.max_queued_requests,
        timeout=settings.queue_timeout,
        worst_case_share=settings.kv_worst_case_share,
    )

    def has_room(choices: int, held: int, asked: int) -> bool:
        try:
            return engine().load().has_room(choices, held, asked)
        except EngineUnavailableError:
            return False  # whoever is under way will end, one way or the other, and then it is asked again

    return FairQueue(rules, room=has_room)
