"""The bench of the transports: its client and loads do what they say, on both."""

from __future__ import annotations

import asyncio
import os

import pytest

from bench.transport.client import Client, ClientError
from bench.transport.loads import LOADS, Load, bytes_per_open_stream, cost
from tests.serving import harness
from tests.serving.harness import TRANSPORTS, Echo, serving


@pytest.fixture(params=sorted(TRANSPORTS), autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "make", TRANSPORTS[request.param])


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
async def test_every_load_is_answered_to_its_end(load: Load) -> None:
    async with serving(Echo) as served:
        found = await asyncio.to_thread(cost, load, os.getpid(), f"127.0.0.1:{served.port}", 0.001)
        assert found >= 0
        assert sum(len(handler.messages) for handler in served.handlers) >= 64
        assert all(handler.ends == [True] for handler in served.handlers)


async def test_streams_are_held_open_for_their_memory() -> None:
    async with serving(Echo) as served:
        await asyncio.to_thread(bytes_per_open_stream, os.getpid(), f"127.0.0.1:{served.port}", 20)
        assert len(served.handlers) == 10 + 20


async def test_a_server_that_goes_away_is_an_error() -> None:
    async with serving(Echo) as served:
        client = await asyncio.to_thread(Client, f"127.0.0.1:{served.port}")
        with client:
            stop = asyncio.create_task(served.transport.stop(0))
            with pytest.raises(ClientError):
                await asyncio.to_thread(client.until_answered, 1)
            await stop
