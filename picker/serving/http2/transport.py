"""The fast transport: our own HTTP/2 connection under a thin asyncio protocol.

There is no task, future or timer per stream. What a client sends arrives in one call per read; all that
its streams answer meanwhile goes out in one write.
"""

from __future__ import annotations

import asyncio
import logging
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, cast

from picker.serving.health import EXT_PROC_SERVICE
from picker.serving.http2.connection import Connection, Limits
from picker.serving.http2.events import (
    ConnectionEnded,
    HalfClosed,
    Message,
    StreamEnded,
    StreamLost,
    StreamOpened,
)
from picker.serving.http2.heads import Status
from picker.serving.http2.health import HealthCalls
from picker.serving.http2.messages import Gathering
from picker.serving.listening import open_sockets
from picker.serving.tls import CertificateStore

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from picker.serving.contract import Accept, Buffer, Handler
    from picker.serving.health import Health
    from picker.serving.http2.events import Event
    from picker.serving.options import TransportOptions

_log = logging.getLogger(__name__)

_PROCESS = f"/{EXT_PROC_SERVICE}/Process"

_LINGER = 1.0
"""Seconds for the last bytes of a connection to be written; then it is cut."""

_TICK = 1.0

_RECEIVE_BUFFER = 256 * 1024
_SMALL = 32 * 1024
"""Bytes up to which copying is cheaper than views into what is received, or many buffers in a write."""

_WRITE_BUFFER = 512 * 1024
"""Bytes the system has not taken yet, above which messages are held back."""
_CONTROL_LIMIT = 1024 * 1024
"""Bytes that may be written beyond that. Messages are not, so it is a client that makes us answer
control frames and reads nothing; it is cut."""

_GATHER = 0.002
"""Seconds between two reads while nothing but chunks of answers under way comes, and often. What they lead
to is written at once, so both happen for many chunks together: a wake-up, its read and write, and the
reading at the other end cost as much as dozens of chunks, and a token later by two milliseconds is no later
for anybody. Where chunks come more seldom, none waits."""

_HANDSHAKE_DEADLINE = 10.0

_UNANSWERED_RESETS = 5_000.0
"""Streams a second on one connection that may be opened and reset before they were answered, and as
many at once. Above it is read no faster. It is not closed: a gateway passes on what its clients do."""


class Http2Transport:
    """Serves ``Process`` and the health service on one port. See ``contract.Transport``.

    Without ``accept`` it serves the health service alone.
    """

    def __init__(self, accept: Accept | None, health: Health, options: TransportOptions) -> None:
        self._options = options
        self._health = HealthCalls(health)
        self.methods: dict[str, Callable[[_Call], Handler]] = {**self._health.methods}
        if accept is not None:
            self.methods[_PROCESS] = accept
        self.limits = Limits(options.max_message)
        self.gathering = Gathering(max(options.max_unfinished, options.max_message))
        # Reading is one step of the loop (the buffer is asked for, filled and looked at), so that all
        # connections can share it.
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BUFFER))
        self.protocols: set[_Protocol] = set()
        self.draining = False
        self._sockets: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._streams = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def bind(self) -> int:
        """Take the port. See ``contract.Transport``."""
        if not self._sockets:
            if self._options.tls is not None:
                from picker.serving.http2.tls import server_context  # noqa: PLC0415 - only where TLS is on

                self._tls = server_context(CertificateStore(self._options.tls))
            self._sockets = open_sockets(self._options.address)
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def start(self) -> int:
        """Serve. See ``contract.Transport``."""
        port = self.bind()
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            server = await loop.create_server(
                lambda: _Protocol(self, loop),
                sock=listening,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else _HANDSHAKE_DEADLINE,
            )
            self._servers.append(server)
        self._timer = loop.call_later(_TICK, self._tick, loop)
        return port

    async def stop(self, grace: float) -> None:
        """End as ``contract.Transport.stop`` says."""
        if not self._servers:
            for taken in self._sockets:  # bound, never served
                taken.close()
            return
        if not self.draining:
            self.draining = True
            for server in self._servers:
                server.close()
            for protocol in tuple(self.protocols):
                protocol.drain()
        self._health.close()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            self._reset_all()
        await self._close_connections()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def streams_open(self) -> int:
        """Streams whose handler was not told of their end yet."""
        return self._streams

    def stream_opened(self) -> None:
        """Count a stream of ``Process``."""
        self._streams += 1
        self._idle.clear()

    def stream_closed(self) -> None:
        """Count it off."""
        self._streams -= 1
        if not self._streams:
            self._idle.set()

    def _reset_all(self) -> None:
        if self._streams:
            _log.warning("reset %d streams that were still open at the end of the drain time", self._streams)
        for protocol in tuple(self.protocols):
            protocol.reset_all(Status.UNAVAILABLE, "the picker is stopping")

    async def _close_connections(self) -> None:
        # A client that was asked to open no more streams answers, and is left then; closing on it
        # before could cut off what it was just sending, and the GOAWAY with it.
        if await self._all_lost(_LINGER):
            return
        for protocol in tuple(self.protocols):
            protocol.close()
        if not await self._all_lost(_LINGER):
            for protocol in tuple(self.protocols):
                protocol.abort()

    async def _all_lost(self, seconds: float) -> bool:
        """Wait so long for all connections to end."""
        try:
            async with asyncio.timeout(seconds):
                while self.protocols:
                    await next(iter(self.protocols)).lost.wait()
        except TimeoutError:
            return False
        return True

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(_TICK, self._tick, loop)
        now = loop.time()
        for protocol in tuple(self.protocols):
            protocol.tick(now)


class _Protocol(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, server: Http2Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.connection = Connection(server.limits, server.gathering, loop.time())
        self.lost = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._secured = False
        self._paused = False
        self._written_paused = 0
        self._calls: dict[int, _Call] = {}
        self._ended: list[_Call] = []  # over by our own doing, and not told yet
        self._within = False  # a flush follows anyway
        self._flush_due = False
        self._urgent = False  # something of what is to be written is no chunk of an answer under way
        self._echoed = 0  # messages of the last read that were
        self._echoed_at = -inf
        self._rested = False  # before the last read
        self._closing_since: float | None = None
        self._resets = _UNANSWERED_RESETS
        self._resets_at = loop.time()

    @property
    def draining(self) -> bool:
        """Whether streams are to end as soon as they can."""
        return self._server.draining

    # Calls of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = transport = cast("asyncio.Transport", transport)
        self._secured = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._server.protocols.add(self)
        if self.draining:
            self.drain()
        else:
            self._flush()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where to read to."""
        return self._server.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read, and write what it led to."""
        data: Buffer = self._server.receive_buffer[:nbytes]
        if nbytes <= _SMALL:
            data = bytes(data)
        now = self._loop.time()
        self._within = True
        self._urgent = False
        self._echoed = 0
        self._handle(self.connection.receive(data, now))
        if self.connection.unanswered_resets:
            self._slow_down(now)
        self._within = False
        self._flush()
        self._rest()

    def eof_received(self) -> bool:
        """Close: a client that reads no answers needs none."""
        return False

    def pause_writing(self) -> None:
        """Hold messages back."""
        self._paused = True
        self._written_paused = 0
        self.connection.pause()

    def resume_writing(self) -> None:
        """Send messages again."""
        self._paused = False
        self._handle(self.connection.resume())
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Tell all streams."""
        self._server.protocols.discard(self)
        self._transport = None
        self.connection.close("the connection is lost")
        self._lose_all()
        self.lost.set()

    # Calls of the server.

    def tick(self, now: float) -> None:
        """Look at what has its time."""
        self._handle(self.connection.tick(now))
        self._flush()
        if self._closing_since is not None and now - self._closing_since > _LINGER:
            self.abort()

    def drain(self) -> None:
        """Ask for no more streams, and end those that can be ended."""
        self.connection.drain(self._loop.time())
        self._finish_drained()
        self._flush()

    def reset_all(self, status: Status, reason: str) -> None:
        """End all streams at once."""
        for call in tuple(self._calls.values()):
            call.reset(status, reason)
        self._flush()

    def close(self) -> None:
        """End the connection once everything is written."""
        self._handle(self.connection.close("the picker is stopping"))
        self._flush()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    # Calls of streams.

    def echo(self) -> None:
        """Write something that might as well have come a moment later."""
        if self._within:
            self._echoed += 1
        else:
            self.wake()

    def wake(self) -> None:
        """Write as soon as this step of the loop is over, if nothing else is about to."""
        self._urgent = True
        if not (self._within or self._flush_due):
            self._flush_due = True
            self._loop.call_soon(self._flush_soon)

    def ended(self, call: _Call) -> None:
        """A stream is over; its handler is told when whoever ended it has returned."""
        self._ended.append(call)
        self.wake()

    # What happened.

    def _handle(self, events: Sequence[Event]) -> None:
        calls = self._calls
        for event in events:
            if type(event) is Message:
                call = calls.get(event.stream_id)
                if call is not None:  # it may have been ended while these events waited
                    call.received(event.data)
            elif type(event) is StreamOpened:
                self._open(event.stream_id, event.path)
            elif type(event) is ConnectionEnded:
                level = logging.WARNING if calls else logging.DEBUG
                _log.log(level, "a connection with %d streams ended: %s", len(calls), event.reason)
                self._lose_all()
            else:
                self._end(event)

    def _end(self, event: HalfClosed | StreamEnded | StreamLost) -> None:
        if type(event) is HalfClosed:
            call = self._calls.get(event.stream_id)
            if call is not None:
                call.half_closed()
        else:
            call = self._calls.pop(event.stream_id, None)
            if call is not None:
                call.conclude(clean=type(event) is StreamEnded)

    def _open(self, stream_id: int, path: str) -> None:
        make = self._server.methods.get(path)
        if make is None:
            self.connection.reset(stream_id, Status.UNIMPLEMENTED, "unknown method")
            return
        call = self._calls[stream_id] = _Call(self, stream_id, self._server if path == _PROCESS else None)
        call.open(make)

    def _lose_all(self) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.conclude(clean=False)

    def _finish_drained(self) -> None:
        for call in tuple(self._calls.values()):
            call.finish_if_drained()

    def _tell_ended(self) -> None:
        while self._ended:
            ended, self._ended = self._ended, []
            for call in ended:
                if self._calls.pop(call.stream_id, None) is not None:
                    call.conclude(clean=not call.failed)

    def _slow_down(self, now: float) -> None:
        """Read on only when the resets of this connection are within their rate again."""
        earned = (now - self._resets_at) * _UNANSWERED_RESETS
        self._resets = min(self._resets + earned, _UNANSWERED_RESETS) - self.connection.unanswered_resets
        self._resets_at = now
        self.connection.unanswered_resets = 0
        if self._resets < 0 and self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()
            self._loop.call_later(-self._resets / _UNANSWERED_RESETS, self._read_on)

    def _rest(self) -> None:
        """Read on in a moment, if by then more of what may wait will have come."""
        transport, now = self._transport, monotonic()
        often = self._echoed > 1 if self._rested else now - self._echoed_at < _GATHER
        self._rested = bool(self._echoed) and often and not self._urgent
        if self._echoed:
            self._echoed_at = now
        if self._rested and transport is not None and transport.is_reading():
            transport.pause_reading()
            self._loop.call_later(_GATHER, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Writing.

    def _flush_soon(self) -> None:
        self._flush_due = False
        if self.draining:
            self._finish_drained()
        self._flush()

    def _flush(self) -> None:
        if self._ended:
            self._tell_ended()
        transport = self._transport
        if transport is None or self._closing_since is not None:
            return
        out = self.connection.data_to_send()
        if out:
            size = sum(map(len, out))
            if self._paused:
                self._written_paused += size
                if self._written_paused > _CONTROL_LIMIT:
                    self.abort()
            # Over TLS each buffer would become a record of its own.
            if self._secured or size <= _SMALL:
                transport.write(b"".join(out))
            else:
                transport.writelines(_joined(out))
        if self.connection.ended:
            self._closing_since = self._loop.time()
            transport.close()


class _Call:
    """One open call; offers ``contract.Stream`` to the handler."""

    __slots__ = (
        "_closed",
        "_counted_by",
        "_delivered",
        "_finishing",
        "_handler",
        "_protocol",
        "_when_over",
        "failed",
        "stream_id",
    )

    def __init__(self, protocol: _Protocol, stream_id: int, counted_by: Http2Transport | None) -> None:
        self._protocol = protocol
        self.stream_id = stream_id
        self._counted_by = counted_by
        self._handler: Handler | None = None
        self._delivered = False  # the handler had a message
        self._when_over: Callable[[], None] | None = None
        self._closed = False  # the handler was told of the end
        self._finishing = False
        self.failed = False

    # What the handler calls.

    def send(self, segments: Sequence[Buffer]) -> None:
        """Queue one message. See ``contract.Stream``."""
        if not (self._finishing or self.failed):
            self._protocol.connection.send(self.stream_id, segments)
            self._protocol.wake()

    def send_soon(self, segments: Sequence[Buffer]) -> None:
        """Queue one message that may wait for others. See ``contract.Stream``."""
        if not (self._finishing or self.failed):
            self._protocol.connection.send(self.stream_id, segments)
            self._protocol.echo()

    def finish(self) -> None:
        """Close OK after what is queued. See ``contract.Stream``."""
        if self._finishing or self.failed:
            return
        self._finishing = True
        if self._protocol.connection.finish(self.stream_id):
            self._protocol.ended(self)

    def abort(self, reason: str) -> None:
        """Close with an error status now. See ``contract.Stream``."""
        self.reset(Status.INTERNAL, reason)

    # What the transport calls.

    def reset(self, status: Status, reason: str) -> None:
        """Close with this status, dropping what is queued. Overrides a ``finish`` that is still flushing."""
        if not self.failed:
            self.failed = True
            self._protocol.connection.reset(self.stream_id, status, reason)
            self._protocol.ended(self)

    def open(self, make: Callable[[_Call], Handler]) -> None:
        """Have a handler made."""
        if self._counted_by is not None:
            self._counted_by.stream_opened()
        try:
            self._handler = make(self)
        except Exception:  # noqa: BLE001 - one stream must not end the process; the client gets a status
            self._broken()

    def received(self, message: bytes) -> None:
        """Pass a message on."""
        if self._finishing or self.failed or self._handler is None:
            return
        self._delivered = True
        try:
            self._handler.received(message)
        except Exception:  # noqa: BLE001 - see open
            self._broken()
        if self._protocol.draining:
            self.finish_if_drained()

    def half_closed(self) -> None:
        """Pass on that no more messages come."""
        if not (self._finishing or self.failed):
            self.tell_closed(clean=True)

    def finish_if_drained(self) -> None:
        """Close OK if that loses nothing."""
        # Before its first message a stream's mode is unknown: closing it OK could lose a body.
        if self._delivered and self._handler is not None and not self._handler.carries_body:
            self.finish()

    def tell_closed(self, *, clean: bool) -> None:
        """Tell the handler of the end, if it was not told yet."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._handler is not None:
                self._handler.closed(clean=clean)
        except Exception:  # noqa: BLE001 - see open
            self._broken()

    def conclude(self, *, clean: bool) -> None:
        """The stream is over. Called once, by whoever takes it off the connection's list."""
        self.tell_closed(clean=clean)
        if self._counted_by is not None:
            self._counted_by.stream_closed()
        if self._when_over is not None:
            self._when_over()
        # They hold each other; without this, every stream would wait for the garbage collector.
        self._handler = self._when_over = None

    def when_over(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called at the end of the stream, also where the handler was told earlier."""
        self._when_over = callback

    def _broken(self) -> None:
        _log.exception("the handler of a stream failed")
        self.reset(Status.INTERNAL, "internal error")


def _joined(out: Iterable[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: small ones are joined, large ones stay what they are."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in out:
        if len(buffer) < _SMALL_BUFFER:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined


_SMALL_BUFFER = 2_048
