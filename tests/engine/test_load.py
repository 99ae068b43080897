"""When an engine has room for another request."""

import pytest

from mulgil.engine.load import Capacity, Load


@pytest.mark.parametrize(
    ("load", "choices", "held", "asked", "has_room"),
    [
        (Load(0), 1_000, 10**6, 10**6, True),
        (Load(3, capacity=Capacity(choices=4)), 4, 0, 1, True),
        (Load(4, capacity=Capacity(choices=4)), 5, 0, 1, False),
        (Load(4, waiting=1), 5, 0, 1, False),
        (Load(1, capacity=Capacity(kv_tokens=100)), 2, 60, 40, True),
        (Load(1, capacity=Capacity(kv_tokens=100)), 2, 60, 41, False),
        (Load(1, kv_usage=0.75, capacity=Capacity(kv_tokens=100)), 2, 60, 25, True),
        (Load(1, kv_usage=0.75, capacity=Capacity(kv_tokens=100)), 2, 60, 26, False),
    ],
)
def test_room_is_what_neither_promises_nor_use_have_taken(
    load: Load, choices: int, held: int, asked: int, has_room: bool
) -> None:
    assert load.has_room(choices, held, asked) is has_room
