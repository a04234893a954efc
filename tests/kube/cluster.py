"""The part of a cluster that a test plays in its namespace: users, kubelets and controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.kube.server import MERGE_PATCH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.kube.server import ApiServer

POOLS = "inference.networking.k8s.io/v1"
RBAC = "rbac.authorization.k8s.io/v1"
LABELS = {"app": "llm"}


class Namespace:
    """One namespace of an API server. Each method is done when the server has it."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self.server = server
        self.name = name
        server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def path(self, plural: str, version: str = "v1", name: str = "") -> str:
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{root}/namespaces/{self.name}/{plural}" + (f"/{name}" if name else "")

    def pod(
        self,
        name: str,
        ip: str = "",
        *,
        labels: Mapping[str, str] = LABELS,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Create a pod on a node, so that it has an end; ready if it has an address."""
        metadata = {"name": name, "labels": dict(labels), "annotations": dict(annotations or {})}
        spec = {"nodeName": "node", "containers": [{"name": "server", "image": "server"}]}
        self.server.request("POST", self.path("pods"), {"metadata": metadata, "spec": spec})
        if ip:
            self.set_ready(name, ip)

    def set_ready(self, name: str, ip: str, *, ready: bool = True) -> None:
        """What a kubelet says of a running pod."""
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        self.patch(self.path("pods", name=f"{name}/status"), {"status": status})

    def annotate(self, name: str, **annotations: str) -> None:
        self.patch(self.path("pods", name=name), {"metadata": {"annotations": annotations}})

    def terminate(self, name: str) -> None:
        """Ask a pod to end: it stays until its kubelet says that it has."""
        self.server.request("DELETE", self.path("pods", name=name))

    def remove(self, name: str) -> None:
        """End a pod at once."""
        self.server.request("DELETE", self.path("pods", name=name) + "?gracePeriodSeconds=0")

    def pool(self, name: str = "llm", *, labels: Mapping[str, str] = LABELS, ports: Sequence[int]) -> None:
        """Create an InferencePool."""
        body = self._pool(name, labels, ports)
        self.server.request("POST", self.path("inferencepools", POOLS), body)

    def change_pool(
        self, name: str = "llm", *, labels: Mapping[str, str] = LABELS, ports: Sequence[int]
    ) -> None:
        path = self.path("inferencepools", POOLS, name)
        body = self._pool(name, labels, ports)
        body["metadata"] = {
            "name": name,
            "resourceVersion": self.server.request("GET", path)["metadata"]["resourceVersion"],
        }
        self.server.request("PUT", path, body)

    def delete_pool(self, name: str = "llm") -> None:
        self.server.request("DELETE", self.path("inferencepools", POOLS, name))

    def grant(self, user: str, rules: Sequence[Mapping[str, Sequence[str]]]) -> None:
        """Give a user a Role with these rules, in the place of any that it had."""
        role = {"metadata": {"name": user}, "rules": list(rules)}
        path = self.path("roles", RBAC, user)
        self.server.request("PATCH", f"{path}?fieldManager=test", self._apply("Role", role), APPLY)
        binding = {
            "metadata": {"name": user},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "Role", "name": user, "apiGroup": "rbac.authorization.k8s.io"},
        }
        path = self.path("rolebindings", RBAC, user)
        self.server.request("PATCH", f"{path}?fieldManager=test", self._apply("RoleBinding", binding), APPLY)

    def patch(self, path: str, body: Any) -> None:
        self.server.request("PATCH", path, body, MERGE_PATCH)

    def _apply(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"apiVersion": RBAC, "kind": kind, **body}

    def _pool(self, name: str, labels: Mapping[str, str], ports: Sequence[int]) -> dict[str, Any]:
        return {
            "apiVersion": POOLS,
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": dict(labels)},
                "targetPorts": [{"number": port} for port in ports],
                "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
            },
        }


APPLY = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML too."""
