"""An HTTP port of the picker: opened with one clear error, bounded, and closed in time."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MOST_CONNECTIONS = 64
"""Connections open at once. The port must not eat the file descriptors that streams need."""
SWEEP = 60.0
"""Seconds between two looks at open connections; one that is there at both is cut off, unless it streams
events. The others carry one request only, so no well-behaved peer is hit. aiohttp itself waits for ever
for a peer that does not read, and before 3.14 for one that does not write."""
LAST_WAIT = 10.0
"""Seconds that requests in progress have at shutdown."""
_LONGEST_LINE = 4096
_MOST_HEADERS = 64


class HttpError(Exception):
    """The port cannot be opened; the text is one line that names the setting and the mend."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to listen (``bind`` None: all addresses; ``port`` 0: a free one), and what says so."""

    bind: str | None
    port: int
    bind_variable: str = "PICKER_BIND"
    port_variable: str = "PICKER_METRICS_PORT"


class HttpPort:
    """Serves an application's routes; every connection carries one request."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen: set[web.RequestHandler] = set()
        self._streaming: set[web.RequestHandler] = set()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._listener is None or not self._listener.sockets:
            return self._place.port
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def start(self, app: web.Application) -> None:
        """Open the port. Raises HttpError."""
        app.middlewares.insert(0, _one_request)  # around those that refuse, too
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
        place = self._place
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: self._connection(runner), place.bind, place.port
            )
        except OSError as error:
            await runner.cleanup()
            # asyncio wraps the system's own words into a sentence that names the place once more.
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise HttpError(
                f"cannot listen on {place.bind or 'any address'}, port {place.port} ({reason}):"
                f" set {place.port_variable} to a free port, or {place.bind_variable} to an address of this"
                " machine"
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

    def streams(self, request: web.Request) -> None:
        """Let this request's connection live as long as its handler; that one then minds its peer."""
        self._streaming.add(request.protocol)
        self._streaming &= self._connections()

    def _connections(self) -> set[web.RequestHandler]:
        if self._runner is None or self._runner.server is None:
            return set()
        return set(self._runner.server.connections)

    def _connection(self, runner: web.AppRunner) -> asyncio.Protocol:
        """A protocol for a new connection."""
        server = runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            return _Closed()
        return server()

    def _sweep(self) -> None:
        if self._runner is None:
            return
        connections = self._connections()
        for protocol in (self._seen & connections) - self._streaming:
            if protocol.transport is not None:
                protocol.transport.abort()
        self._seen = connections
        self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep)


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


class _Closed(asyncio.Protocol):
    """What a connection too many gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it at once."""
        if isinstance(transport, asyncio.Transport):
            transport.abort()
