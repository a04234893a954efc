"""Every test of this room runs on both event loops: asyncio's own, and uvloop as in production."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from tests.serving.harness import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.serving.harness import Served


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A plaintext server whose handlers only note what happens to them."""
    async with serving() as running:
        yield running
