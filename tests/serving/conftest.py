"""Every test of this room runs on both event loops, and where it serves ext_proc on both transports.

The loops are asyncio's own, and uvloop as in production. A server is to be stopped also where its test fails:
uvloop waits at its end for what is still open, and no timeout of pytest is heard there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from tests.serving import harness
from tests.serving.harness import TRANSPORTS, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.serving.harness import Served


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``harness.serving`` and ``harness.make`` use each transport in turn."""
    monkeypatch.setattr(harness, "make", TRANSPORTS[request.param])


@pytest.fixture
async def served(transport: None) -> AsyncIterator[Served]:  # noqa: ARG001 - which one it serves by
    """A plaintext server whose handlers only note what happens to them."""
    async with serving() as running:
        yield running
