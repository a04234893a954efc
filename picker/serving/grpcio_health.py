"""The health service on ``grpc.aio``.

The servicer of grpcio-health-checking is not used: it lacks ``List``, and it holds a lock while it
writes to a watcher, so that one watcher that stops reading would keep every later change of state from
everybody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # nor does this

from picker.serving.health import all_statuses, known, status_of

if TYPE_CHECKING:
    from picker.serving.health import Health

_Status = health_pb2.HealthCheckResponse


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
