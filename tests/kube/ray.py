"""The part of KubeRay that a test plays: a RayService's status, and the pods of its RayClusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.endpoints.ray_objects import ray_pod, ray_service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kube.cluster import Namespace

RAY = "ray.io/v1"
NAME = "llm"
_POD_TEMPLATE = {"spec": {"containers": [{"name": "ray", "image": "ray"}]}}


class KubeRay:
    """One RayService named ``llm`` in a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        head = {"rayStartParams": {}, "template": _POD_TEMPLATE}
        body = {
            "apiVersion": RAY,
            "kind": "RayService",
            "metadata": {"name": NAME},
            "spec": {"rayClusterConfig": {"headGroupSpec": head}},
        }
        namespace.server.request("POST", namespace.path("rayservices", RAY), body)

    def status(
        self, active: str, pending: str = "", percents: tuple[int | None, int | None] = (None, None)
    ) -> None:
        """What the operator writes as an upgrade goes on."""
        status = ray_service(active, pending, percents)["status"]
        merged = {
            side: {"rayClusterName": None, "trafficRoutedPercent": None, **content}
            for side, content in status.items()
        }
        path = self._namespace.path("rayservices", RAY, f"{NAME}/status")
        self._namespace.patch(path, {"status": merged})

    def pods(self, cluster: str, addresses: Sequence[str], pages: Sequence[str] = ()) -> list[str]:
        """A ready worker for each ``ip:port``, where its metrics are, too, if not elsewhere; their names."""
        names = []
        for number, (address, page) in enumerate(zip(addresses, pages or addresses, strict=True)):
            ip, _, port = address.rpartition(":")
            name = f"{cluster}-worker-{number}"
            ports = {"serve": int(port), "metrics": int(page.rpartition(":")[2])}
            pod = ray_pod(name, ip, cluster, ports=ports)
            pod["metadata"].pop("namespace")
            pod["spec"]["nodeName"] = "node"  # so that it has an end
            self._namespace.server.request("POST", self._namespace.path("pods"), pod)
            self._namespace.set_ready(name, ip)
            names.append(name)
        return names
