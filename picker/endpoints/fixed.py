"""A fixed list of endpoints. Names in it are resolved, and again when their answers are too old."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from picker.addresses import HostPort, SrvName, parse_ip
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.names import Names, UnresolvedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from picker.endpoints.names import Meaning

log = logging.getLogger(__name__)

LEAST_INTERVAL = 5.0
"""Seconds between two resolutions of a name at least, whatever its TTL; also after a failure."""
LONGEST_INTERVAL = 300.0
"""The same at most: who changes an address does not always think of the TTL it had."""
UNRESOLVED_INTERVAL = 2.0
"""The same while a name was never resolved."""


class FixedSource:
    """The members named by ``PICKER_ENDPOINTS``.

    A name is resolved again by its TTL. One that cannot be resolved keeps its last answer; one that never
    could is left out till it can. The metrics are on ``metrics_target_port`` of each address, or on the port
    of the traffic.
    """

    def __init__(
        self,
        members: Sequence[HostPort | SrvName],
        *,
        metrics_target_port: int | None = None,
        resolve: Callable[[HostPort | SrvName], Awaitable[Meaning]] | None = None,
        least_interval: float = LEAST_INTERVAL,
    ) -> None:
        self._members = members
        self._metrics_port = metrics_target_port
        self._resolve = resolve or Names().resolve
        self._least_interval = least_interval
        self._answers: dict[HostPort | SrvName, Meaning] = {}
        self._failing: set[HostPort | SrvName] = set()

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        loop = asyncio.get_running_loop()
        due = {member: 0.0 for member in self._members if _is_name(member)}
        last: tuple[Endpoint, ...] | None = None
        while True:
            now = loop.time()
            asked = [name for name, when in due.items() if when <= now]
            await asyncio.gather(*map(self._refresh, asked))
            due.update((name, loop.time() + self._interval(name)) for name in asked)
            endpoints = self._endpoints()
            if endpoints != last:
                last = endpoints
                yield endpoints
            if not due:
                await asyncio.Event().wait()  # nothing can change any more
            await asyncio.sleep(max(0.0, min(due.values()) - loop.time()))

    def _interval(self, name: HostPort | SrvName) -> float:
        answer = self._answers.get(name)
        if answer is None:
            return min(self._least_interval, UNRESOLVED_INTERVAL)
        if name in self._failing:
            return self._least_interval
        return max(self._least_interval, min(answer.ttl, LONGEST_INTERVAL))

    def _endpoints(self) -> tuple[Endpoint, ...]:
        found: dict[str, Endpoint] = {}
        for member in self._members:
            name = _shown(member) if _is_name(member) else ""
            for address in self._addresses(member):
                metrics = HostPort(address.host, self._metrics_port or address.port)
                found.setdefault(str(address), Endpoint(str(address), str(metrics), name=name))
        return tuple(found.values())

    def _addresses(self, member: HostPort | SrvName) -> tuple[HostPort, ...]:
        if isinstance(member, HostPort) and not _is_name(member):
            return (member,)
        answer = self._answers.get(member)
        return answer.addresses if answer else ()

    async def _refresh(self, name: HostPort | SrvName) -> None:
        try:
            self._answers[name] = await self._resolve(name)
        except UnresolvedError as error:
            self._failed(name, str(error))
            return
        if name in self._failing:
            self._failing.discard(name)
            log.info("name resolved again", extra={"fields": {"name": _shown(name)}})

    def _failed(self, name: HostPort | SrvName, why: str) -> None:
        if name in self._failing:
            return
        self._failing.add(name)
        addresses = [address.host for address in self._addresses(name)]
        log.warning(
            "name cannot be resolved; its last addresses stay in the pool",
            extra={"fields": {"name": _shown(name), "error": why, "addresses": addresses}},
        )


def _is_name(member: HostPort | SrvName) -> bool:
    return isinstance(member, SrvName) or not parse_ip(member.host)


def _shown(name: HostPort | SrvName) -> str:
    return name.name if isinstance(name, SrvName) else name.host
