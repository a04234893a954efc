"""Every body mode of a real Envoy: requests are served, balanced, and arrive byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
import random
from io import BytesIO
from typing import TYPE_CHECKING

import aiohttp
import orjson
import pytest

from bench.rig.envoy import MODES
from tests.envoy.conftest import gateway, internal_errors
from tests.support.upstream import lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.rig.envoy import Mode

pytestmark = [pytest.mark.envoy, pytest.mark.sequence("through Envoy")]

CHAT = "/v1/chat/completions"


def chat(size: int = 100) -> bytes:
    """A chat request with a prompt of ``size`` characters that do not repeat."""
    text = random.Random(7).randbytes(size // 2).hex()
    return orjson.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]})


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def in_chunks(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("mode", MODES)
async def test_requests_of_all_kinds_are_served_and_leave_nothing_behind(mode: Mode) -> None:
    async with gateway(mode) as gate:
        small, big, other = chat(), chat(5_000_000), random.Random(3).randbytes(300_000)
        for path, body in [(CHAT, small), (CHAT, big), ("/upload", other), ("/upload", b"")]:
            async with gate.client.post(gate.url + path, data=BytesIO(body)) as answer:
                assert answer.status == 200
                assert answer.headers["x-sha256"] == sha256(body)
                assert sha256(await answer.read()) == sha256(body)
        async with gate.client.post(gate.url + CHAT, data=in_chunks(big, 40_000)) as answer:
            assert answer.status == 200
            assert sha256(await answer.read()) == sha256(big)
        async with gate.client.get(f"{gate.url}/lines?count=200&interval=0") as answer:
            assert await answer.read() == lines(200)
        async with gate.client.head(gate.url + "/anything") as answer:
            assert answer.status == 200
        async with gate.client.post(gate.url + CHAT, data=b"not json") as answer:
            assert await answer.read() == b"not json"

        series = await gate.streams_closed()
        assert series['picker_decisions_total{outcome="picked"}'] == 8
        assert series['picker_decisions_total{outcome="simplest"}'] == 0
        assert internal_errors(series) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_bodies_beyond_every_bound_pass_whole(mode: Mode) -> None:
    async with gateway(mode, max_body="2KiB", max_buffered="8KiB") as gate:

        async def post(body: bytes, chunk: int = 0) -> None:
            data = in_chunks(body, chunk) if chunk else BytesIO(body)
            async with gate.client.post(gate.url + CHAT, data=data) as answer:
                assert answer.status == 200
                assert sha256(await answer.read()) == sha256(body)

        for size in (1_900, 2_048, 2_049, 5_000, 3_000_000):
            await post(chat(size))
            await post(chat(size), chunk=max(100, size // 50))
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(post(chat(1_500), chunk=100))
                group.create_task(post(chat(200_000), chunk=20_000))
        series = await gate.streams_closed()
        assert series['picker_decisions_total{outcome="picked"}'] == 50
        assert internal_errors(series) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_cannot_choose_and_the_gateway_gets_one_and_the_same_destination(mode: Mode) -> None:
    async with gateway(mode) as gate:
        first, second = gate.servers
        spoof = {"x-gateway-destination-endpoint": first.address}
        for _ in range(30):
            async with gate.client.post(gate.url + CHAT, data=chat(), headers=spoof) as answer:
                served = answer.headers["x-served-by"]
                server = first if served == first.address else second
                assert server.received[-1]["x-gateway-destination-endpoint"] == served
        assert second.served > 0


@pytest.mark.parametrize(("mode", "sees_ends"), [("duplex", True), ("buffered", False)])
async def test_concurrent_requests_are_spread_evenly(mode: Mode, sees_ends: bool) -> None:
    # With pages, or the picks were random for the first seconds.
    async with gateway(mode, servers=3, page="idle") as gate:

        async def stream() -> None:
            async with gate.client.get(f"{gate.url}/lines?count=5&interval=0.1") as answer:
                await answer.read()

        async with asyncio.TaskGroup() as group:
            for _ in range(30):
                group.create_task(stream())
        served = [server.served for server in gate.servers]
        assert sum(served) == 30
        assert max(served) - min(served) <= (4 if sees_ends else 16)


@pytest.mark.parametrize("mode", ["buffered", "headers"])
async def test_a_websocket_works_where_the_body_need_not_pass_the_picker(mode: Mode) -> None:
    async with gateway(mode) as gate, gate.client.ws_connect(gate.url + "/ws") as socket:
        await socket.send_str("hello")
        assert await socket.receive_str(timeout=10) == "hello"


@pytest.mark.parametrize("mode", ["duplex", "buffered"])
async def test_tls_with_the_self_signed_certificate(mode: Mode) -> None:
    async with gateway(mode, tls=True) as gate, gate.client.post(gate.url + CHAT, data=chat()) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("mode", MODES)
async def test_clients_that_go_away_leave_nothing_behind(mode: Mode) -> None:
    async with gateway(mode) as gate:

        async def leave_early() -> None:
            with pytest.raises(TimeoutError):
                async with (
                    asyncio.timeout(0.3),
                    gate.client.get(f"{gate.url}/lines?count=1000&interval=0.05") as answer,
                ):
                    await answer.read()

        async def leave_in_the_upload() -> None:
            async def endless() -> AsyncIterator[bytes]:
                while True:
                    yield b'{"model": "m", "messages": ['
                    await asyncio.sleep(0.05)

            with pytest.raises((TimeoutError, aiohttp.ClientError)):
                async with asyncio.timeout(0.3), gate.client.post(gate.url + CHAT, data=endless()):
                    pass

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(leave_early())
                group.create_task(leave_in_the_upload())
        series = await gate.streams_closed()
        assert internal_errors(series) == 0
        assert "Traceback" not in gate.picker.child.log_text()
        if mode in ("duplex", "buffered_streamed"):
            assert series["picker_requests_in_flight"] == 0
