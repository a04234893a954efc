"""The gRPC health service (grpc.health.v1), on the ext_proc port and on a port of its own.

The wire types are those of grpcio-health-checking. Its servicer is not used: it lacks ``List``, and
it holds a lock while it writes to a watcher, so that one watcher that stops reading would keep every
later change of state from everybody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # nor does this

from picker.serving.listening import Address, bind

if TYPE_CHECKING:
    from collections.abc import Callable

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_READINESS_NAMES = ("", "readiness", EXT_PROC_SERVICE, "inference-extension")
"""The names gateways, probes and the ecosystem's charts ask for; all mean the same."""
_LIVENESS_NAME = "liveness"
_NAMES = (*_READINESS_NAMES, _LIVENESS_NAME)

_STOP_GRACE = 1.0
"""Seconds for answers on their way when a health server stops."""

_Status = health_pb2.HealthCheckResponse


class Health:
    """Whether the picker should get traffic. Changes are seen by every server that shows it."""

    def __init__(self) -> None:
        self._ready = False
        self._leading = True
        self._draining = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """What ``set_ready`` said last."""
        return self._ready

    @property
    def draining(self) -> bool:
        """True from ``drain`` on, for good."""
        return self._draining

    @property
    def serving(self) -> bool:
        """True while new requests are welcome."""
        return self._ready and self._leading and not self._draining

    def set_ready(self, ready: bool) -> None:
        """Say whether streams can be answered well, as far as the picker's own state goes."""
        self._ready = ready
        self._tell()

    def set_leading(self, leading: bool) -> None:
        """Say whether this picker is the one that is to get the traffic; without an election it is."""
        self._leading = leading
        self._tell()

    def drain(self) -> None:
        """Be NOT_SERVING from now on; liveness stays as it is."""
        self._draining = True
        self._tell()

    def listen(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after every change, on the event loop."""
        self._listeners.append(changed)

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()


def known(name: str) -> bool:
    """Whether a name is one that is asked for."""
    return name in _NAMES


def status_of(health: Health, name: str) -> health_pb2.HealthCheckResponse.ServingStatus:
    """What a name's status is now."""
    if name == _LIVENESS_NAME:
        return _Status.SERVING
    if name not in _READINESS_NAMES:
        return _Status.SERVICE_UNKNOWN
    return _Status.SERVING if health.serving else _Status.NOT_SERVING


def all_statuses(health: Health) -> health_pb2.HealthListResponse:
    """The status of every name."""
    statuses = {name: _Status(status=status_of(health, name)) for name in _NAMES}
    return health_pb2.HealthListResponse(statuses=statuses)


class HealthServicer:
    """Shows a ``Health`` on one server."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._closed = False
        self._changed = asyncio.Event()
        health.listen(self._wake)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a ``grpc.aio`` server that is not started yet."""
        # By a generic handler only: with the generated registration, which also makes "registered
        # methods", the server waits for each kind of call apart, and every ext_proc stream pays for it.
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self.Check,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
            ),
            "List": grpc.unary_unary_rpc_method_handler(
                self.List,
                request_deserializer=health_pb2.HealthListRequest.FromString,
                response_serializer=health_pb2.HealthListResponse.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self.Watch,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
            ),
        }
        service = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def close(self) -> None:
        """End all watches, which would otherwise keep their server from stopping."""
        self._closed = True
        self._wake()

    async def Check(  # noqa: N802 - named by the protocol
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answer with the status of one name; NOT_FOUND for a name that is not known."""
        if not known(request.service):
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return _Status(status=status_of(self._health, request.service))

    async def List(  # noqa: N802 - named by the protocol
        self, _request: health_pb2.HealthListRequest, _context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """Answer with the status of all names."""
        return all_statuses(self._health)

    async def Watch(  # noqa: N802 - named by the protocol
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Send the status of one name now and after every change of it, until the server stops."""
        sent = None
        while not self._closed:
            changed = self._changed
            status = status_of(self._health, request.service)
            if status != sent:
                await context.write(_Status(status=status))
                sent = status
                continue  # it may have changed while it was written
            await changed.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")

    def _wake(self) -> None:
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()


class HealthServer:
    """The health service alone, in plaintext, on its own port: for probes that cannot speak TLS."""

    def __init__(self, health: Health, address: Address) -> None:
        self._servicer = HealthServicer(health)
        self._address = address
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the bound port. Raises ``ServingError`` where that is impossible."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._servicer.register(server)
        port = bind(server, self._address)
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        """End the watches and close."""
        self._servicer.close()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE)
