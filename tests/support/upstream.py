"""A small upstream in the test's own loop that tells exactly what it received."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aiohttp import WSMsgType, web

from picker.gateway.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BODY_LIMIT = 128 * 1024 * 1024
HANG = 60.0
"""Seconds; nobody who asks waits that long."""


def line(number: int) -> bytes:
    """One line of a streamed answer."""
    return b"data: %d %s\n\n" % (number, hashlib.sha256(b"%d" % number).hexdigest().encode())


def lines(count: int) -> bytes:
    """The whole streamed answer of ``count`` lines."""
    return b"".join(line(number) for number in range(count))


Page = Literal["missing", "idle", "broken", "hanging", "endless"]
IDLE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


@dataclass
class Upstream:
    """One server. ``served`` counts its requests.

    ``failing`` makes it answer 500 to all of them, ``full`` as a Ray proxy whose queue is full; the path
    ``/poison`` gets 500 in any case. ``page`` is what becomes of who asks for its metrics.
    """

    address: str = ""
    served: int = 0
    failing: bool = False
    full: bool = False
    page: Page = "missing"
    paths: list[str] = field(default_factory=list)
    received: list[dict[str, str]] = field(default_factory=list)
    _runner: web.AppRunner | None = field(default=None, init=False)

    async def start(self) -> None:
        """Listen: on a free port at first, later on the same one again."""
        runner = self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        port = int(self.address.rpartition(":")[2] or free_port())
        await web.TCPSite(runner, "127.0.0.1", port).start()
        host, port = runner.addresses[0][:2]
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        """Close the port and all connections. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def application(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_route("*", "/lines{path:.*}", self._lines)
        app.router.add_get("/ws", self._websocket)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/{path:.*}", self._echo)
        return app

    async def _echo(self, request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except ConnectionError:
            return web.Response(status=499)
        self.served += 1
        self.paths.append(request.path)
        self.received.append({name.lower(): value for name, value in request.headers.items()})
        headers = {
            "x-served-by": self.address,
            "x-sha256": hashlib.sha256(body).hexdigest(),
            "x-content-length": request.headers.get("content-length", ""),
        }
        if self.failing or request.path == "/poison":
            return web.Response(status=500, text="Internal Server Error", headers=headers)
        if self.full:
            text = "Request dropped due to backpressure (num_queued_requests=8, max_queued_requests=8)."
            return web.Response(status=503, text=text, headers=headers)
        content = {"content-type": request.headers.get("content-type", "application/octet-stream")}
        return web.Response(body=body, headers=headers | content)

    async def _lines(self, request: web.Request) -> web.StreamResponse:
        """``count`` lines, ``interval`` seconds apart."""
        self.served += 1
        response = web.StreamResponse(headers={"x-served-by": self.address})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        for number in range(int(request.query["count"])):
            try:
                await response.write(line(number))
            except ConnectionError:  # the client went away, which is the point of some tests
                break
            await asyncio.sleep(float(request.query["interval"]))
        return response

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        self.served += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
        return socket

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if self.page == "missing":
            return web.Response(status=404)
        if self.page == "idle":
            return web.Response(text=IDLE)
        if self.page == "broken":
            return web.Response(status=500, text="no page")
        with suppress(ConnectionError):
            if self.page == "hanging":
                await asyncio.sleep(HANG)
            response = web.StreamResponse()
            await response.prepare(request)
            while self.page == "endless":
                await response.write(b"# an endless page\n" * 1000)
                await asyncio.sleep(0.01)
        return web.Response(status=503)


@asynccontextmanager
async def upstreams(count: int, page: Page = "missing") -> AsyncIterator[list[Upstream]]:
    """``count`` upstreams on free ports of 127.0.0.1."""
    servers = [Upstream(page=page) for _ in range(count)]
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            await server.stop()
