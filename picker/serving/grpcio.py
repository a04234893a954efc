"""The reference transport: ``grpc.aio`` with raw message bytes.

Per stream there is the one task that gRPC starts anyway. It reads, lets the handler answer, and writes
what was queued before it reads again; that is the whole back-pressure. Only what a handler sends
at another time (a decision that came later, a timer) is written by a second, short task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types

from picker.serving.grpcio_health import HealthServicer
from picker.serving.health import EXT_PROC_SERVICE
from picker.serving.listening import bind
from picker.serving.tls import CertificateStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picker.serving.contract import Accept, Buffer, Handler
    from picker.serving.health import Health
    from picker.serving.options import TransportOptions
    from picker.serving.tls import Certificates

_log = logging.getLogger(__name__)

_LINGER = 1.0
"""Seconds for the last statuses to be written once every stream is over; then connections are cut."""

_RESET_DELAY = 0.005
"""Seconds to wait for the second of the two signs of a reset. Another thread brings them, so that on a
busy machine it may still be late; hence handlers do not rely on ``clean`` alone."""

_MAX_STREAMS = 65_536

_BASE_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a taken port must be an error, not a silent share of its connections
    ("grpc.max_send_message_length", -1),
    # Per connection, and Envoy has one connection per worker: every request in flight is a stream.
    ("grpc.max_concurrent_streams", _MAX_STREAMS),
    # Streams that wait for this process to see them: above the default of 1,000 gRPC cancels some at random.
    ("grpc.server.max_pending_requests", _MAX_STREAMS),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_STREAMS),
    # Find connections whose gateway vanished without a word, or their streams would be held for hours.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Never answer a gateway's own keep-alive with GOAWAY "too_many_pings", which fails its requests.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]


class GrpcioTransport:
    """Serves ``Process`` and the health service on one port. See ``contract.Transport``.

    Without ``accept`` it serves the health service alone.
    """

    def __init__(self, accept: Accept | None, health: Health, options: TransportOptions) -> None:
        self._accept = accept
        self._options = options
        self._health = HealthServicer(health)
        self._server: grpc.aio.Server | None = None
        self._port = 0
        self._calls: set[_Call] = set()
        self._idle = asyncio.Event()
        self._draining = False
        self._closing: asyncio.Task[None] | None = None

    def bind(self) -> int:
        """Take the port. See ``contract.Transport``."""
        self._bound()
        return self._port

    async def start(self) -> int:
        """Serve. See ``contract.Transport``."""
        await self._bound().start()
        return self._port

    async def stop(self, grace: float) -> None:
        """End as ``contract.Transport.stop`` says."""
        if self._server is None:
            return
        self._draining = True
        if self._closing is None:
            # Sends GOAWAY at its first step; its own grace is only a net, the streams' end is decided here.
            self._closing = asyncio.create_task(self._server.stop(grace + _LINGER))
            await asyncio.sleep(0)
        self._health.close()
        for call in tuple(self._calls):
            call.drain()
        try:
            async with asyncio.timeout(grace):
                while self._calls:
                    await self._idle.wait()
        except TimeoutError:
            self._reset_all()
        await self._server.stop(_LINGER)
        await self._closing

    @property
    def streams_open(self) -> int:
        """Streams whose handler was not told of their end yet."""
        return len(self._calls)

    def _bound(self) -> grpc.aio.Server:
        """The server, with its port taken."""
        if self._server is None:
            options = self._options
            credentials = None if options.tls is None else _credentials(CertificateStore(options.tls))
            server = grpc.aio.server(
                options=[*_BASE_OPTIONS, ("grpc.max_receive_message_length", options.max_message)]
            )
            if self._accept is not None:
                # No (de)serializers: messages stay bytes.
                method = grpc.stream_stream_rpc_method_handler(partial(self._process, self._accept))
                server.add_generic_rpc_handlers(
                    (grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {"Process": method}),)
                )
            self._health.register(server)
            self._port = bind(server, options.address, credentials)
            self._server = server
        return self._server

    def _reset_all(self) -> None:
        calls = tuple(self._calls)
        if calls:
            _log.warning("reset %d streams that were still open at the end of the drain time", len(calls))
        for call in calls:
            call.reset(grpc.StatusCode.UNAVAILABLE, "the picker is stopping")

    async def _process(self, accept: Accept, _messages: object, context: grpc.aio.ServicerContext) -> None:
        call = _Call(context)
        self._calls.add(call)
        self._idle.clear()
        if self._draining:
            call.drain()
        try:
            await call.run(accept)
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()
        await call.conclude()


class _Call:
    """One open call; offers ``contract.Stream`` to the handler.

    gRPC runs each call in a task of its own. That task mostly waits in ``context.read``, and the
    only way out of there before the client does something is to cancel it: see ``_interrupt``.
    """

    __slots__ = (
        "_aborted",
        "_closed",
        "_context",
        "_delivered",
        "_draining",
        "_ended",
        "_finishing",
        "_flusher",
        "_flushing",
        "_handler",
        "_interrupted",
        "_lost",
        "_queue",
        "_task",
    )

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        self._handler: Handler | None = None
        self._queue: deque[bytes] = deque()
        # Something writes the queue and goes on until it is empty: the call's own task, or the flusher.
        self._flushing = False
        self._flusher: asyncio.Task[None] | None = None
        self._delivered = False  # the handler had a message
        self._closed = False  # the handler was told of the end
        self._draining = False
        # Why the call ends. `lost`: the client is gone, and no status can reach it.
        self._finishing = False
        self._aborted: tuple[grpc.StatusCode, str] | None = None
        self._lost = False
        self._interrupted = False
        self._ended = False  # its outcome is settled

    # What the handler calls.

    def send(self, segments: Sequence[Buffer]) -> None:
        """Queue one message. See ``contract.Stream``."""
        if self._over:
            return
        self._queue.append(b"".join(segments))
        if not self._flushing and asyncio.current_task() is not self._task:
            self._flushing = True
            self._flusher = asyncio.create_task(self._flush_apart())

    send_soon = send

    def finish(self) -> None:
        """Close OK after what is queued. See ``contract.Stream``."""
        if self._over:
            return
        self._finishing = True
        if not self._flushing:  # who flushes looks at it afterwards
            self._interrupt()

    def abort(self, reason: str) -> None:
        """Close with an error status now. See ``contract.Stream``."""
        self.reset(grpc.StatusCode.INTERNAL, reason)

    # What the transport calls.

    def reset(self, code: grpc.StatusCode, reason: str) -> None:
        """Close with this status, dropping what is queued. Overrides a ``finish`` that is still flushing."""
        if self._ended or self._lost or self._aborted is not None:
            return
        self._aborted = code, reason
        self._queue.clear()
        self._interrupt()

    def drain(self) -> None:
        """Close OK as soon as that loses nothing: now, or once the handler carries no body any more."""
        self._draining = True
        self._finish_if_drained()

    async def run(self, accept: Accept) -> None:
        """Serve the call up to its end, and tell the handler of it."""
        try:
            await self._exchange(accept)
        except asyncio.CancelledError:
            # Ours if we interrupted and nobody else cancelled; else gRPC says that the client is gone.
            if not self._interrupted or self._task.uncancel() > 0:
                self._lost = True
        except grpc.aio.BaseError:  # an operation on a call that is no more
            self._lost = True
        except Exception:  # noqa: BLE001 - one stream must not end the process; the client gets a status
            _log.exception("the handler of a stream failed")
            self._aborted = grpc.StatusCode.INTERNAL, "internal error"
        finally:
            self._ended = True
            if self._flusher is not None:
                self._flusher.cancel()
            self._tell_closed(clean=not self._lost and self._aborted is None)

    async def conclude(self) -> None:
        """Give the client its status; returning means OK."""
        if self._lost:
            # Returning would have gRPC send a status, fail, and log that with a stack.
            raise asyncio.CancelledError
        if self._aborted is not None:
            # To a client that takes no data the status waits behind what was being written, until
            # it resets the stream or the server stops: gRPC offers no reset of a single call.
            await self._context.abort(*self._aborted)

    # The call's own task.

    async def _exchange(self, accept: Accept) -> None:
        handler = self._handler = accept(self)
        await self._written()
        while not self._over:
            message = await self._context.read()
            if message is grpc.aio.EOF:
                await self._half_closed()
                return
            self._delivered = True
            handler.received(message)
            await self._written()

    async def _half_closed(self) -> None:
        # A reset shows as the end of messages and as a cancellation, in either order.
        await asyncio.sleep(_RESET_DELAY)
        self._tell_closed(clean=True)
        await self._written()
        if not self._over:
            # Cancelled by finish, by abort, or by the client's reset.
            await asyncio.get_running_loop().create_future()

    async def _written(self) -> None:
        """Wait until all that is queued is in gRPC's hands: only then is the next message read."""
        if self._flusher is not None:
            await self._flusher
        elif self._queue:
            self._flushing = True
            await self._flush()
        self._finish_if_drained()

    async def _flush(self) -> None:
        while self._queue:
            await self._context.write(self._queue.popleft())
        self._flushing = False

    # Beside it.

    async def _flush_apart(self) -> None:
        """Write what was sent while the call's own task waits for the client."""
        try:
            await self._flush()
        except grpc.aio.BaseError:
            self._lost = True
        self._flusher = None
        if self._over:
            self._interrupt()
        else:
            self._finish_if_drained()

    def _interrupt(self) -> None:
        """Get the call's own task out of its waiting, so that it ends the call."""
        if not self._interrupted and asyncio.current_task() is not self._task:
            self._interrupted = True
            self._task.cancel()

    # State.

    @property
    def _over(self) -> bool:
        return self._finishing or self._lost or self._aborted is not None

    def _finish_if_drained(self) -> None:
        # Before its first message a stream's mode is unknown: closing it OK could lose a body.
        if not (self._draining and self._delivered) or self._flushing:
            return
        if self._handler is not None and not self._handler.carries_body:
            self.finish()

    def _tell_closed(self, *, clean: bool) -> None:
        if self._closed or self._handler is None:
            return
        self._closed = True
        try:
            self._handler.closed(clean=clean)
        except Exception:  # noqa: BLE001 - the client must get its status all the same
            _log.exception("the handler of a stream failed at its end")


def _credentials(store: CertificateStore) -> grpc.ServerCredentials:
    """Credentials for a ``grpc.aio`` server; gRPC offers ALPN ``h2`` by itself.

    gRPC asks for a newer configuration before each handshake, one per connection, so looking at
    the files' stamps there costs nothing that matters and needs no watcher.
    """

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        renewed = store.renewed()
        return None if renewed is None else _configuration(renewed)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(store.current),
        fetch,
        require_client_authentication=store.current.client_ca is not None,
    )


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.chain)], root_certificates=certificates.client_ca
    )
