"""Fixtures that every test may use."""

from collections.abc import AsyncGenerator

import pytest
from harness import Server, serving


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    """A gateway on the simulated engine."""
    async with serving() as running:
        yield running
