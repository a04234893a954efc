"""The kinds of objects that are asked for, and where the API server has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects that live in namespaces. ``group`` is empty for the core ones."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        """The path of all objects of a namespace, or of one of them."""
        root = f"/apis/{self.group}" if self.group else "/api"
        path = f"{root}/{self.version}/namespaces/{namespace}/{self.plural}"
        return f"{path}/{name}" if name else path

    def __str__(self) -> str:
        """As RBAC rules and ``kubectl`` name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
INFERENCE_POOLS = Resource("inference.networking.k8s.io", "v1", "inferencepools")
RAY_SERVICES = Resource("ray.io", "v1", "rayservices")
HTTP_ROUTES = Resource("gateway.networking.k8s.io", "v1", "httproutes")
