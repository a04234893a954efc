"""SIGTERM under way: nothing that was promised is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.envoy.conftest import gateway
from tests.support.upstream import lines

if TYPE_CHECKING:
    from bench.rig.envoy import Mode
    from tests.envoy.conftest import Gateway

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]

LINES = 600
INTERVAL = 0.1
"""A streamed answer of 60 seconds."""


async def streamed_answer(gate: Gateway, path: str) -> bytes:
    async with gate.client.post(gate.url + path, data=b'{"model": "m", "messages": []}') as answer:
        assert answer.status == 200
        return await answer.read()


async def survives(mode: Mode) -> None:
    async with gateway(mode, drain_delay="2s", drain_timeout="150s", failure_mode_allow=True) as gate:
        path = f"/lines/v1/chat/completions?count={LINES}&interval={INTERVAL}"
        answer = asyncio.create_task(streamed_answer(gate, path))
        await gate.servers_busy(1)
        gate.picker.child.terminate()
        # In the drain delay new requests are answered as ever.
        before = (await gate.series())['picker_decisions_total{outcome="picked"}']
        for _ in range(5):
            async with gate.client.get(f"{gate.url}/hello") as hello:
                assert hello.status == 200
        assert (await gate.series())['picker_decisions_total{outcome="picked"}'] == before + 5
        assert await answer == lines(LINES)
        assert await gate.picker.child.wait(30) == 0


async def test_an_answer_of_a_minute_survives_the_end_of_the_picker_byte_for_byte() -> None:
    async with asyncio.TaskGroup() as group:
        for mode in ("duplex", "buffered"):
            group.create_task(survives(mode))


async def test_at_the_drain_timeout_a_body_is_reset_and_never_closed_as_if_it_were_whole() -> None:
    async with gateway("duplex", drain_delay="0s", drain_timeout="1s") as gate:
        url = f"{gate.url}/lines/v1/chat/completions?count=10000&interval=0.05"
        async with gate.client.post(url, data=b'{"model": "m"}') as answer:
            assert answer.status == 200
            gate.picker.child.terminate()
            with pytest.raises(Exception, match=r"payload|closed|reset|Response"):
                await answer.read()
        assert await gate.picker.child.wait(20) == 0
