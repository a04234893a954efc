"""``python -m tests.fuzz.capture``: what real clients send, written anew to ``captures``.

Envoy in several body modes and grpcio talk to a real picker through a relay that keeps their bytes.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types

from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.picker import Picker
from bench.rig.servers import Servers
from tests.extproc.gateway import BODY, message

if TYPE_CHECKING:
    from bench.rig.envoy import Mode

CAPTURES = Path(__file__).with_name("captures")
MODES: tuple[Mode, ...] = ("duplex", "buffered", "buffered_streamed", "headers")
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
LONG = 20_000


class Relay:
    """Passes the connections of one client on to ``upstream``, and keeps what it sent."""

    def __init__(self, upstream: str) -> None:
        self._host, _, port = upstream.rpartition(":")
        self._port = int(port)
        self.kept: list[bytearray] = []

    async def start(self, stack: AsyncExitStack) -> str:
        """Listen on a free port; returns the address."""
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        await stack.enter_async_context(server)
        return "{}:{}".format(*server.sockets[0].getsockname())

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(self._host, self._port)
        kept = bytearray()
        self.kept.append(kept)
        await asyncio.gather(_pump(reader, here, kept), _pump(there, writer, bytearray()))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    while part := await source.read(65_536):
        kept += part
        sink.write(part)
    sink.close()


async def of_envoy(mode: Mode) -> bytes:
    """Requests of every shape, by one Envoy."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(Servers(count=2))
        picker = await stack.enter_async_context(Picker({"PICKER_ENDPOINTS": ",".join(servers.addresses)}))
        relay = Relay(picker.address)
        ext_proc = ExtProc(address=await relay.start(stack), mode=mode)
        door = Listener(name=mode, endpoints=servers.addresses, balancer="picker", ext_proc=ext_proc)
        envoy = await stack.enter_async_context(Envoy(bootstrap([door]), concurrency=1))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://{envoy.address(mode)}/v1/chat/completions"
        words = [{"role": "user", "content": "hello"}]
        bodies = [
            {"model": "m", "messages": words},
            {"model": "m", "messages": [{"role": "user", "content": "word " * (LONG // 5)}]},
            {"model": "m", "messages": words, "stream": True, "chunks": 5, "interval": 0.001},
        ]
        async with session.get(url) as response:
            await response.read()
        for body in bodies:
            async with session.post(url, json=body) as response:
                await response.read()
        kept = max(relay.kept, key=len)
    return bytes(kept)


async def of_grpcio() -> bytes:
    """Calls of ext_proc and of health."""
    async with AsyncExitStack() as stack:
        picker = await stack.enter_async_context(Picker({"PICKER_ENDPOINTS": "127.0.0.1:1,127.0.0.1:2"}))
        relay = Relay(picker.address)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(await relay.start(stack)))
        headers = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
        exchange = [
            message("request_headers", headers=headers, modes="duplex/duplex"),
            message("request_body", body=BODY, end=True),
            message("response_headers", headers={":status": "200"}),
            message("response_body", body=b"data: 1\n\n"),
            message("response_body", end=True),
        ]
        for count in (0, 1, 2, 3, len(exchange)):
            call = channel.stream_stream(METHOD)(iter(exchange[:count]), timeout=10)
            async for _ in call:
                pass
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        await watch.read()
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\x09readiness")
        await channel.unary_unary("/grpc.health.v1.Health/List")(b"")
        watch.cancel()
        (kept,) = relay.kept
    return bytes(kept)


async def main() -> None:
    """Write all captures."""
    CAPTURES.mkdir(exist_ok=True)
    for mode in MODES:
        (CAPTURES / f"envoy-{mode}.bin").write_bytes(await of_envoy(mode))
    (CAPTURES / "grpcio.bin").write_bytes(await of_grpcio())


if __name__ == "__main__":
    asyncio.run(main())
