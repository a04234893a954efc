"""``PICKER_SERVICE``: the EndpointSlices of a Service."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.addresses import HostPort, is_port, parse_ip
from picker.endpoints.endpoint import Endpoint
from picker.kube.resource import ENDPOINT_SLICES
from picker.kube.watches import Watches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from picker.kube.client import Json, KubeClient
    from picker.kube.names import ServicePort
    from picker.kube.watch import Pace

log = logging.getLogger(__name__)

_SERVICE_NAME = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True)
class Address:
    """One endpoint of a slice. ``pod`` is empty where nothing is said to be behind it."""

    ip: str
    pod: str


@dataclass(frozen=True, slots=True)
class Slice:
    """The addresses of a slice that serve, and its ports by name ("" for one without)."""

    addresses: tuple[Address, ...]
    ports: tuple[tuple[str, int], ...]


def read_slice(item: Json) -> Slice | None:
    """What is kept of an EndpointSlice; None for one of names, which no gateway can send a request to."""
    if item["addressType"] not in ("IPv4", "IPv6"):
        return None
    addresses = tuple(
        Address(ip, (endpoint.get("targetRef") or {}).get("name", ""))
        for endpoint in item.get("endpoints") or ()
        if _serves(endpoint.get("conditions") or {}) and (ip := parse_ip(endpoint["addresses"][0]))
    )
    ports = tuple(
        (port.get("name") or "", port["port"])
        for port in item.get("ports") or ()
        if port.get("protocol", "TCP") == "TCP" and is_port(port.get("port") or 0)
    )
    return Slice(addresses, ports)


def _serves(conditions: Json) -> bool:
    """Whether new requests may be sent there.

    What is not said counts as the API has it: ready, serving, not terminating. A Service that publishes what
    is not ready calls it all ``ready``, so the other two are looked at as well.
    """
    ready, serving, terminating = (conditions.get(name) for name in ("ready", "serving", "terminating"))
    return ready is not False and serving is not False and not terminating


class ServiceSource:
    """The addresses behind a Service on one of its ports.

    A number of ``service`` is that of the target, for EndpointSlices tell no other: 8000 where the Service
    has 80 and sends to 8000. Without name or number the Service must have one port only.

    A Service that has no slices has no endpoints. Where the API server cannot be asked the last set stays,
    and the first one is waited for. The metrics are on ``metrics_target_port`` of each address, or on the
    port of the traffic.
    """

    def __init__(
        self,
        client: KubeClient,
        service: ServicePort,
        *,
        metrics_target_port: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        (self._namespace, self._name), self._port = service
        self._metrics_port = metrics_target_port
        self._pace = pace
        self._told = False

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        last: tuple[Endpoint, ...] | None = None
        selector = f"{_SERVICE_NAME}={self._name}"
        async with Watches(self._client, pace=self._pace) as watches:
            slices = watches.add(ENDPOINT_SLICES, self._namespace, read_slice, selector=selector)
            while True:
                await watches.changed()
                if not slices.synced:
                    continue
                endpoints = self._endpoints(slices.items.values())
                if endpoints != last:
                    last = endpoints
                    yield endpoints

    def _endpoints(self, slices: Iterable[Slice]) -> tuple[Endpoint, ...]:
        slices = list(slices)
        chosen = self._chosen({port for part in slices for port in part.ports})
        found = {endpoint.address: endpoint for part in slices for endpoint in self._of_slice(part, chosen)}
        # A Service of both families has each server twice, and it may listen on one only.
        version_4 = {address: endpoint for address, endpoint in found.items() if address[0] != "["}
        return tuple(endpoint for _, endpoint in sorted((version_4 or found).items()))

    def _of_slice(self, part: Slice, chosen: str | None) -> Iterator[Endpoint]:
        for name, number in part.ports:
            if chosen not in (name, str(number)):
                continue
            for address in part.addresses:
                metrics = HostPort(address.ip, self._metrics_port or number)
                yield Endpoint(str(HostPort(address.ip, number)), str(metrics), address.pod, self._namespace)

    def _chosen(self, ports: set[tuple[str, int]]) -> str | None:
        """The name or number of the port to use; None, and told once, where that is not clear."""
        names = sorted({name for name, _ in ports})
        if not ports or self._port in names or self._port in {str(number) for _, number in ports}:
            chosen: str | None = self._port
        else:
            chosen = names[0] if not self._port and len(names) == 1 else None
        if chosen is None and not self._told:
            self._tell_unclear(names)
        self._told = chosen is None
        return chosen

    def _tell_unclear(self, names: list[str]) -> None:
        fields = {
            "service": f"{self._namespace}/{self._name}",
            "port": self._port or "none given",
            "ports": ", ".join(names),
            "mend": f"PICKER_SERVICE={self._namespace}/{self._name}:{names[0] or 'PORT'}",
        }
        log.error("the Service has no such port; no endpoints", extra={"fields": fields})
