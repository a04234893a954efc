"""What the gRPC health service (grpc.health.v1) says, whichever transport says it.

The wire types are those of grpcio-health-checking, whose module of messages needs no gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # ships no types

if TYPE_CHECKING:
    from collections.abc import Callable

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_READINESS_NAMES = ("", "readiness", EXT_PROC_SERVICE, "inference-extension")
"""The names gateways, probes and the ecosystem's charts ask for; all mean the same."""
_LIVENESS_NAME = "liveness"
_NAMES = (*_READINESS_NAMES, _LIVENESS_NAME)

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
