"""Binding a gRPC server to its port, with an error an operator can act on."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from picker.serving.contract import ServingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types


_BACKLOG = 1_024
_TAKEN = (errno.EADDRINUSE, errno.EACCES)

_Candidate = tuple[int, int, int, str, tuple[Any, ...]]
"""As ``socket.getaddrinfo`` gives them."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen, and the setting to name when that is impossible."""

    host: str
    """An address or name; empty means all addresses, IPv6 and IPv4."""
    port: int
    """0 takes a free port."""
    setting: str

    def __str__(self) -> str:
        # gRPC takes `[::]` as "all addresses" and falls back to 0.0.0.0 where IPv6 is off.
        host = self.host or "::"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None = None) -> int:
    """Add the port to a ``grpc.aio`` server that is not started yet; returns the bound port."""
    # Asked first, since gRPC neither tells the reason nor keeps from writing to stderr by itself.
    obstacle = _obstacle(address)
    port = 0
    if obstacle is None:
        try:
            if credentials is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), credentials)
        except RuntimeError as error:
            obstacle = str(error)
    if port == 0:
        raise _cannot_listen(address, obstacle)
    return port


def open_sockets(address: Address) -> list[socket.socket]:
    """Listening sockets, one per address meant, all on one port. Raises ``ServingError``."""
    try:
        candidates = _candidates(address)
    except OSError as error:
        raise _cannot_listen(address, error.strerror) from error
    port = address.port
    sockets: list[socket.socket] = []
    obstacle: OSError | None = None
    for family, kind, protocol, _, place in candidates:
        opened = None
        try:
            opened = _bound(family, kind, protocol, (place[0], port, *place[2:]))
            opened.listen(_BACKLOG)
        except OSError as error:
            if opened is not None:
                opened.close()
            obstacle = error
            if error.errno in _TAKEN:
                break
        else:
            sockets.append(opened)
            port = opened.getsockname()[1]
    if not sockets or (obstacle is not None and obstacle.errno in _TAKEN):
        for opened in sockets:
            opened.close()
        raise _cannot_listen(address, None if obstacle is None else obstacle.strerror)
    return sockets


def _cannot_listen(address: Address, obstacle: str | None) -> ServingError:
    return ServingError(
        f"cannot listen on {address} ({obstacle}):"
        f" set {address.setting} to a free port, or PICKER_BIND to an address of this machine"
    )


def _obstacle(address: Address) -> str | None:
    """Why the port cannot be bound; None if it can, at least on one of the addresses meant."""
    try:
        candidates = _candidates(address)
    except OSError as error:
        return error.strerror
    obstacles = []
    for family, kind, protocol, _, place in candidates:
        try:
            _bound(family, kind, protocol, place).close()
        except OSError as error:
            if error.errno in _TAKEN:
                return error.strerror
            obstacles.append(error.strerror)  # such as an address family that is switched off
    return obstacles[0] if len(obstacles) == len(candidates) else None


def _candidates(address: Address) -> Sequence[_Candidate]:
    return socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )


def _bound(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(place)
    except OSError:
        opened.close()
        raise
    return opened
