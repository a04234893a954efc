"""The HTTP port: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for whoever restarts us."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.registry import Collector

    from picker.observe.prometheus import Metrics

MOST_CONNECTIONS = 64
"""Connections open at once. The port must not eat the file descriptors that streams need."""
SWEEP = 60.0
"""Seconds between two looks at open connections; one that is there at both is cut off. Each carries
one request only, so no well-behaved peer is hit. aiohttp itself waits for ever for a peer that does
not read, and before 3.14 for one that does not write."""
LAST_WAIT = 10.0
"""Seconds that requests in progress have at shutdown."""
_LONGEST_LINE = 4096
_MOST_HEADERS = 64
_END = b"# EOF\n"


class HttpError(Exception):
    """The port cannot be opened; the text is one line that names the setting and the mend."""


class MetricsServer:
    """Serves ``metrics`` on ``bind`` (None: all addresses) and ``port`` (0: a free one).

    ``ready`` is asked for each ``/readyz``. ``/healthz`` says no more than that the event loop turns.
    """

    def __init__(self, bind: str | None, port: int, metrics: Metrics, ready: Callable[[], bool]) -> None:
        self._bind = bind
        self._port = port
        self._registry = metrics.registry
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen: set[web.RequestHandler] = set()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._listener is None or not self._listener.sockets:
            return self._port
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Open the port. Raises HttpError."""
        app = web.Application(middlewares=[_one_request])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        runner = web.AppRunner(
            app,
            access_log=None,
            lingering_time=0,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
            max_headers=_MOST_HEADERS,
            shutdown_timeout=LAST_WAIT,
        )
        await runner.setup()
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: self._connection(runner), self._bind, self._port
            )
        except OSError as error:
            await runner.cleanup()
            # asyncio wraps the system's own words into a sentence that names the place once more.
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise HttpError(
                f"cannot listen on {self._bind or 'any address'}, port {self._port} ({reason}):"
                " set PICKER_METRICS_PORT to a free port, or PICKER_BIND to an address of this machine"
            ) from None
        self._runner = runner
        self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    async def stop(self) -> None:
        """Close the port and, after at most LAST_WAIT, what is open on it. Idempotent."""
        listener, self._listener = self._listener, None
        runner, self._runner = self._runner, None
        if self._timer is not None:
            self._timer.cancel()
        if listener is not None:
            listener.close()
        if runner is not None:
            await runner.cleanup()

    def _connection(self, runner: web.AppRunner) -> asyncio.Protocol:
        """A protocol for a new connection."""
        server = runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            return _Closed()
        return server()

    def _sweep(self) -> None:
        if self._runner is None or self._runner.server is None:
            return
        connections = set(self._runner.server.connections)
        for protocol in self._seen & connections:
            if protocol.transport is not None:
                protocol.transport.abort()
        self._seen = connections
        self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is not one
            encode, content_type = choose_encoder("")
        body = await _page(self._registry, encode)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not ready\n")


@web.middleware
async def _one_request(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Close the connection after the answer, also after an error's."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.force_close()
        raise
    response.force_close()
    return response


async def _page(registry: CollectorRegistry, encode: Callable[[Collector], bytes]) -> bytes:
    """The whole page, written family by family so that streams get their turn in between.

    All numbers are taken before the first is written.
    """
    parts = []
    for family in list(registry.collect()):
        parts.append(encode(_Family(family)).removesuffix(_END))
        await asyncio.sleep(0)
    if encode(_Family()):  # OpenMetrics, where even an empty page has an end
        parts.append(_END)
    return b"".join(parts)


class _Family:
    """A registry of one family, or none."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """What an encoder asks for."""
        return iter(self._families)


class _Closed(asyncio.Protocol):
    """What a connection too many gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it at once."""
        if isinstance(transport, asyncio.Transport):
            transport.abort()
