"""Pods of RayClusters, as KubeRay makes them, and the endpoints they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.addresses import HostPort, is_port
from picker.endpoints.endpoint import Endpoint
from picker.endpoints.pods import Pod, read_pod
from picker.endpoints.ray_head import HAPROXY_METRICS_PORT, RAY_METRICS_PORT
from picker.kube.resource import PODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from picker.kube.client import Json
    from picker.kube.watch import Reflector
    from picker.kube.watches import Watches

CLUSTER_LABEL = "ray.io/cluster"
SERVE_LABEL = "ray.io/serve"
"""``true`` on pods that KubeRay lets serve. It exists only where a RayService owns the cluster. Of a head,
which is ready without serving, it is the only word; workers have it always, their readiness decides."""

_SERVE_PORT_NAME = "serve"
_METRICS_PORT_NAME = "metrics"
SERVE_PORT = 8000
"""Where a pod serves that names no port ``serve``."""
_HAPROXY_SWITCH, _HAPROXY_PORT = "RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_HAPROXY_METRICS_PORT"


@dataclass(frozen=True, slots=True)
class RayPod:
    """A pod, and the ports of its Serve proxy and of the metrics page that tells the proxy's load."""

    pod: Pod
    serve_port: int
    metrics_port: int

    @property
    def may_serve(self) -> bool:
        """Whether KubeRay lets it serve, as far as it says."""
        return self.pod.labels.get(SERVE_LABEL) != "false"

    def endpoint(self, metrics_target_port: int | None = None) -> Endpoint:
        """The endpoint of its proxy."""
        return Endpoint(
            address=str(HostPort(self.pod.ip, self.serve_port)),
            metrics_address=self.metrics_address(metrics_target_port),
            name=self.pod.name,
            namespace=self.pod.namespace,
            labels=self.pod.labels,
        )

    def metrics_address(self, metrics_target_port: int | None = None) -> str:
        """Where its metrics are."""
        return str(HostPort(self.pod.ip, metrics_target_port or self.metrics_port))


def read_ray_pod(item: Json) -> RayPod:
    """What is kept of a pod. In Serve's HAProxy mode, told by its environment, HAProxy knows the load."""
    pod = read_pod(item)
    serve = (port for name, port in pod.ports.items() if _is_serve(name))
    metrics = pod.ports.get(_METRICS_PORT_NAME, RAY_METRICS_PORT)
    # The first container is Ray's; KubeRay says so.
    entries = item["spec"]["containers"][0].get("env") or ()
    environment = {entry["name"]: entry.get("value") for entry in entries}
    if environment.get(_HAPROXY_SWITCH) == "1":
        said = environment.get(_HAPROXY_PORT) or ""
        number = int(said) if said.isascii() and said.isdecimal() else 0
        metrics = number if is_port(number) else HAPROXY_METRICS_PORT
    return RayPod(pod, next(serve, SERVE_PORT), metrics)


def _is_serve(port_name: str) -> bool:
    return port_name == _SERVE_PORT_NAME or port_name.startswith(f"{_SERVE_PORT_NAME}-")


def endpoints_of(pods: Iterable[RayPod], *, metrics_target_port: int | None) -> tuple[Endpoint, ...]:
    """The endpoints of the pods that serve, in the order of their names."""
    serving = sorted((pod for pod in pods if pod.pod.serves), key=lambda pod: pod.pod.name)
    found: dict[str, Endpoint] = {}
    for pod in serving:
        endpoint = pod.endpoint(metrics_target_port)
        found.setdefault(endpoint.address, endpoint)
    return tuple(found.values())


class ClusterPods:
    """The pods of a few RayClusters, which change with each upgrade."""

    def __init__(self, watches: Watches, namespace: str) -> None:
        self._watches = watches
        self._namespace = namespace
        self._watched: dict[str, Reflector[RayPod]] = {}

    def of(self, clusters: Iterable[str]) -> Mapping[str, tuple[RayPod, ...]] | None:
        """The pods of each of these clusters; None while those of one are not known.

        They are watched from now on. Others are watched no more, but only once these are known.
        """
        wanted = list(clusters)
        for name in wanted:
            if name not in self._watched:
                self._watched[name] = self._watches.add(
                    PODS, self._namespace, read_ray_pod, selector=f"{CLUSTER_LABEL}={name}"
                )
        if not all(self._watched[name].synced for name in wanted):
            return None
        for name in self._watched.keys() - set(wanted):
            self._watches.drop(self._watched.pop(name))
        return {name: tuple(self._watched[name].items.values()) for name in wanted}
