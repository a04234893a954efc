"""Binding a gRPC server to its port, with an error an operator can act on."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.serving.contract import ServingError

if TYPE_CHECKING:
    import grpc.aio  # type: ignore[import-untyped]  # grpcio ships no types


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
        raise ServingError(
            f"cannot listen on {address} ({obstacle}):"
            f" set {address.setting} to a free port, or PICKER_BIND to an address of this machine"
        )
    return port


def _obstacle(address: Address) -> str | None:
    """Why the port cannot be bound; None if it can, at least on one of the addresses meant."""
    try:
        candidates = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        return error.strerror
    obstacles = []
    for family, kind, protocol, _, place in candidates:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return error.strerror
            obstacles.append(error.strerror)  # such as an address family that is switched off
    return obstacles[0] if len(obstacles) == len(candidates) else None
