"""A fixed list of endpoints. Names in it are resolved, and again from time to time."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from picker.addresses import HostPort, parse_ip
from picker.endpoints.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

RESOLVE_INTERVAL = 30.0
"""Seconds between two resolutions of all names."""
UNRESOLVED_INTERVAL = 2.0
"""The same while a name was never resolved."""
RESOLVE_TIMEOUT = 5.0
"""Seconds an answer is waited for; the start waits for the first ones that long at most."""


async def resolve(host: str) -> Sequence[str]:
    """The IP addresses of a name. Raises OSError."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in answers]


class FixedSource:
    """The members named by ``PICKER_ENDPOINTS``.

    A name that cannot be resolved keeps its last answer; one that never could is left out till it
    can. The metrics are on ``metrics_target_port`` of each address, or on the port of the traffic.
    """

    def __init__(
        self,
        members: Sequence[HostPort],
        *,
        metrics_target_port: int | None = None,
        interval: float = RESOLVE_INTERVAL,
        resolve: Callable[[str], Awaitable[Sequence[str]]] = resolve,
    ) -> None:
        self._members = members
        self._metrics_port = metrics_target_port
        self._interval = interval
        self._resolve = resolve
        self._answers: dict[str, list[str]] = {}
        self._failing: set[str] = set()

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        names = list(dict.fromkeys(host for host, _ in self._members if not parse_ip(host)))
        last: tuple[Endpoint, ...] | None = None
        while True:
            await asyncio.gather(*(self._refresh(name) for name in names))
            endpoints = self._endpoints()
            if endpoints != last:
                last = endpoints
                yield endpoints
            if not names:
                await asyncio.Event().wait()  # nothing can change any more
            known = all(name in self._answers for name in names)
            await asyncio.sleep(self._interval if known else min(self._interval, UNRESOLVED_INTERVAL))

    def _endpoints(self) -> tuple[Endpoint, ...]:
        found: dict[str, Endpoint] = {}
        for host, port in self._members:
            literal = parse_ip(host)
            for ip in [literal] if literal else self._answers.get(host, ()):
                address = str(HostPort(ip, port))
                metrics = str(HostPort(ip, self._metrics_port or port))
                found.setdefault(address, Endpoint(address, metrics, name="" if literal else host))
        return tuple(found.values())

    async def _refresh(self, name: str) -> None:
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT):
                answers = [ip for answer in await self._resolve(name) if (ip := parse_ip(answer))]
        except (OSError, UnicodeError) as error:  # UnicodeError: names the idna codec refuses
            self._failed(name, str(error) or "no answer in time")
            return
        if not answers:
            self._failed(name, "it has no address")
            return
        # Of a server with addresses of both kinds IPv4 is taken: as one endpoint, not as two, and
        # not by an IPv6 address that it may not listen on ("localhost" has one on most machines).
        version_4 = [ip for ip in answers if ":" not in ip]
        self._answers[name] = sorted(set(version_4 or answers))
        if name in self._failing:
            self._failing.discard(name)
            log.info("name resolved again", extra={"fields": {"name": name}})

    def _failed(self, name: str, why: str) -> None:
        if name in self._failing:
            return
        self._failing.add(name)
        log.warning(
            "name cannot be resolved; its last addresses stay in the pool",
            extra={"fields": {"name": name, "error": why, "addresses": self._answers.get(name, [])}},
        )
