"""Ports for processes that are told theirs."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
_UNPRIVILEGED = 1024
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_KEPT = 64

_promised: deque[int] = deque()
"""Descriptors of sockets."""


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Give ``count`` different ports that were free a moment ago. OSError if there are not as many.

    They lie below those that the kernel gives to clients, one of which could else have it by the time it is
    listened on, or listened on again after a restart. Of the last ones the UDP ports of the same numbers are
    kept, by which others who ask here meanwhile see that they are promised. Where a program can bind port 0
    and say what it got, prefer that.
    """
    found: list[int] = []
    end = _first_of_clients()
    candidates = range(max(_UNPRIVILEGED, end // 2), end)  # what has a port of its own is lower
    for port in random.sample(candidates, len(candidates)):
        if len(found) == count:
            break
        if _promise(port, host):
            found.append(port)
    return found + _given_by_the_kernel(count - len(found), host)


def free_port(host: str = LOOPBACK) -> int:
    """Give one port that was free a moment ago."""
    return free_ports(1, host)[0]


def _first_of_clients() -> int:
    """The lowest port that a client may be given; 0 where that is not told."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _promise(port: int, host: str) -> bool:
    """Keep a port's promise, if neither anybody listens there nor has it been promised to others."""
    with ExitStack() as stack, suppress(OSError):
        promise = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        promise.bind((host, port))
        with socket.socket() as probe:
            probe.bind((host, port))
        _promised.append(promise.detach())
        while len(_promised) > _KEPT:
            os.close(_promised.popleft())
        return True
    return False


def _given_by_the_kernel(count: int, host: str) -> list[int]:
    with ExitStack() as stack:
        # All are held until the last one is found, so that none is given twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind((host, 0))
        return [taken.getsockname()[1] for taken in sockets]
