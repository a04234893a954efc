"""Free TCP ports on the loopback address."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Give ``count`` different ports that were free a moment ago.

    All are held until the last one is found, so that none is given twice. Another process may still
    take one before it is used: where a program can bind port 0 and say what it got, prefer that.
    """
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)
        ]
        for sock in sockets:
            sock.bind((host, 0))
        return [sock.getsockname()[1] for sock in sockets]


def free_port(host: str = LOOPBACK) -> int:
    """Give one port that was free a moment ago."""
    return free_ports(1, host)[0]
