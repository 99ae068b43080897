"""What an engine does and could do, and whether that leaves room for another request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can do at the same time; None is no limit.

    Attributes:
        choices: that it works on.
        kv_tokens: of prompts and answers that it holds.
    """

    choices: int | None = None
    kv_tokens: int | None = None


UNBOUNDED = Capacity()


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine is doing, and how much it could do.

    Attributes:
        unfinished: requests given to the engine and not finished: running or waiting there.
        waiting: those of them that waited there when it was last heard of.
        kv_usage: share of its KV cache that was in use then, 0 to 1.
        capacity: what it could do.
    """

    unfinished: int
    waiting: int = 0
    kv_usage: float = 0.0
    capacity: Capacity = UNBOUNDED

    def has_room(self, choices: int, held: int, asked: int) -> bool:
        """Whether it can begin with another request without letting any wait.

        Args:
            choices: of all requests under way and of the next one, together.
            held: tokens that those under way are expected to need, together.
            asked: tokens that the next one is expected to need.
        """
        most, kv_tokens = self.capacity.choices, self.capacity.kv_tokens
        if self.waiting or (most is not None and choices > most):
            return False
        return kv_tokens is None or max(held, self.kv_usage * kv_tokens) + asked <= kv_tokens
