"""Pods and RayServices as KubeRay makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from picker.kube.client import Json


def ray_pod(
    name: str,
    ip: str,
    cluster: str,
    *,
    ready: bool = True,
    head: bool = False,
    serve: str | None = "true",
    ports: dict[str, int] | None = None,
    env: dict[str, str] | None = None,
) -> Json:
    """A pod of a RayCluster; ``serve`` is the label by which KubeRay lets it serve."""
    kind = "head" if head else "worker"
    labels = {"ray.io/cluster": cluster, "ray.io/node-type": kind, "ray.io/is-ray-node": "yes"}
    if serve is not None:
        labels["ray.io/serve"] = serve
    known = {"serve": 8000, "metrics": 8080} if ports is None else ports
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "containers": [
                {
                    "name": "ray",
                    "image": "ray",
                    "ports": [{"name": key, "containerPort": port} for key, port in known.items()],
                    "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                }
            ]
        },
        "status": {
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def ray_service(
    active: str = "", pending: str = "", percents: tuple[int | None, int | None] = (None, None)
) -> Json:
    """A RayService named ``llm`` with the status KubeRay writes."""
    status = {}
    sides = ("activeServiceStatus", "pendingServiceStatus")
    for key, cluster, percent in zip(sides, (active, pending), percents, strict=True):
        status[key] = {
            **({"rayClusterName": cluster} if cluster else {}),
            **({} if percent is None else {"trafficRoutedPercent": percent}),
        }
    return {"metadata": {"name": "llm", "namespace": "default"}, "spec": {}, "status": status}
