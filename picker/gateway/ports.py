"""Ports for processes that are told theirs."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 20_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Give ``count`` different ports that were free a moment ago. OSError if there are not as many.

    They lie below those that the kernel gives to clients, one of which could else have it by the time it is
    listened on, or listened on again after a restart. Another server may still take one before that: where
    a program can bind port 0 and say what it got, prefer that.
    """
    end = _first_of_clients()
    if end - _LOWEST < 2 * count:
        return _given_by_the_kernel(count, host)
    found: list[int] = []
    for port in random.sample(range(_LOWEST, end), min(end - _LOWEST, 100 + 2 * count)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            found.append(port)
        if len(found) == count:
            return found
    return _given_by_the_kernel(count, host)


def free_port(host: str = LOOPBACK) -> int:
    """Give one port that was free a moment ago."""
    return free_ports(1, host)[0]


def _first_of_clients() -> int:
    """The lowest port that a client may be given; 0 where that is not told."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _given_by_the_kernel(count: int, host: str) -> list[int]:
    with ExitStack() as stack:
        # All are held until the last one is found, so that none is given twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind((host, 0))
        return [taken.getsockname()[1] for taken in sockets]
