"""What is known of a pod, and which endpoints it makes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from picker.addresses import HostPort, is_port, parse_ip
from picker.endpoints.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from picker.kube.client import Json

log = logging.getLogger(__name__)

# The second name is the legacy one; the first wins.
_ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
_RAY_CLUSTER = "ray.io/cluster"
_RAY_SERVE = "ray.io/serve"
_RAY_METRICS_PORT_NAME = "metrics"
_RAY_METRICS_PORT = 8080
"""Where KubeRay has each Ray node show its metrics, unless the pod names another port ``metrics``."""


@dataclass(frozen=True, slots=True)
class Pod:
    """``ip`` is empty while it has none. ``ports`` are those of its containers that have a name.

    ``active_ports`` are the only ones on which it serves, by its annotation; None: it has none.
    """

    name: str
    namespace: str
    ip: str
    ready: bool
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    active_ports: frozenset[int] | None = None

    @property
    def serves(self) -> bool:
        """Whether requests may be sent to it.

        The head of a Ray cluster is ready without serving; KubeRay says by a label whether it does.
        """
        return self.ready and bool(self.ip) and self.labels.get(_RAY_SERVE) != "false"


def read_pod(item: Json) -> Pod:
    """What is kept of a pod. One that is being deleted is not ready: it may refuse the next request."""
    metadata, status = item["metadata"], item.get("status", {})
    conditions = status.get("conditions") or ()
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return Pod(
        name=metadata["name"],
        namespace=metadata["namespace"],
        ip=parse_ip(status.get("podIP", "")),
        ready=ready and "deletionTimestamp" not in metadata,
        labels=metadata.get("labels") or {},
        ports={
            port["name"]: port["containerPort"]
            for container in item["spec"]["containers"]
            for port in container.get("ports") or ()
            if "name" in port
        },
        active_ports=_active_ports(metadata["name"], metadata.get("annotations") or {}),
    )


def _active_ports(pod: str, annotations: Mapping[str, str]) -> frozenset[int] | None:
    said = next((annotations[name] for name in _ACTIVE_PORTS if name in annotations), None)
    if said is None:
        return None
    ports, wrong = set(), []
    for part in filter(None, map(str.strip, said.split(","))):
        number = int(part) if part.isascii() and part.isdigit() else 0
        if is_port(number):
            ports.add(number)
        else:
            wrong.append(part)
    if wrong:
        fields = {"pod": pod, "annotation": said[:80]}
        log.warning("entries of a pod's active ports are no ports and are skipped", extra={"fields": fields})
    return frozenset(ports)


class PodEndpoints:
    """The endpoints of pods on certain ports; ``metrics_target_port`` is where each has its metrics.

    Those of a pod that stayed the same are not made again: of thousands one changes at a time.
    """

    def __init__(self, metrics_target_port: int | None) -> None:
        self._metrics_port = metrics_target_port
        self._ports: Sequence[int] = ()
        self._made: dict[str, tuple[Pod, tuple[Endpoint, ...]]] = {}

    def of(self, pods: Iterable[Pod], ports: Sequence[int]) -> tuple[Endpoint, ...]:
        """An endpoint for each of ``ports`` of each pod that serves, in the order of the pods' names."""
        before = self._made if ports == self._ports else {}
        self._ports = ports
        self._made = {pod.name: self._endpoints(pod, before.get(pod.name)) for pod in pods if pod.serves}
        found: dict[str, Endpoint] = {}
        for name in sorted(self._made):
            for endpoint in self._made[name][1]:
                # Pods with the host's network share its address; of two with one endpoint the first has it.
                found.setdefault(endpoint.address, endpoint)
        return tuple(found.values())

    def _endpoints(
        self, pod: Pod, before: tuple[Pod, tuple[Endpoint, ...]] | None
    ) -> tuple[Pod, tuple[Endpoint, ...]]:
        if before is not None and before[0] is pod:
            return before
        return pod, tuple(_endpoints(pod, self._ports, self._metrics_port))


def _endpoints(pod: Pod, ports: Sequence[int], metrics_target_port: int | None) -> Iterator[Endpoint]:
    """Named as the llm-d picker does. Ranks count all ports, so that a port keeps its name."""
    metrics_port = metrics_target_port or _ray_metrics_port(pod)
    for rank, port in enumerate(ports):
        if pod.active_ports is None or port in pod.active_ports:
            yield Endpoint(
                address=str(HostPort(pod.ip, port)),
                metrics_address=str(HostPort(pod.ip, metrics_port or port)),
                name=f"{pod.name}-rank-{rank}",
                namespace=pod.namespace,
                labels=pod.labels,
            )


def _ray_metrics_port(pod: Pod) -> int | None:
    """All that serves on a Ray node shows its metrics on one page, on a port of its own."""
    if _RAY_CLUSTER not in pod.labels:
        return None
    return pod.ports.get(_RAY_METRICS_PORT_NAME, _RAY_METRICS_PORT)
