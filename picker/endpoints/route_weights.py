"""The weights of RayClusters as an HTTPRoute has them, for whoever splits the traffic there.

KubeRay gives each RayCluster of an incremental upgrade a Service of its own, ``<cluster>-serve-svc``, and
writes the weights of both into its HTTPRoute. A route of one's own may do the same. The traffic must not be
split twice: a gateway that itself sends by such a route asks no picker for these requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from picker.kube.resource import HTTP_ROUTES
from picker.kube.watches import Watches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from picker.kube.client import Json, KubeClient
    from picker.kube.names import ObjectName
    from picker.kube.watch import Pace

log = logging.getLogger(__name__)

_SUFFIX = "-serve-svc"
_MOST_WEIGHT = 1_000_000
"""What the Gateway API allows."""


def read_route(item: Json) -> Mapping[str, int]:
    """The weights of the clusters in the first rule that names any. Raises ValueError for a wrong one."""
    for rule in item["spec"].get("rules") or ():
        weights: dict[str, int] = {}
        for backend in rule.get("backendRefs") or ():
            name: str = backend["name"]
            kind = (backend.get("group") or "", backend.get("kind") or "Service")
            if kind != ("", "Service") or not name.endswith(_SUFFIX):
                continue
            weight = backend.get("weight", 1)
            if not isinstance(weight, int) or not 0 <= weight <= _MOST_WEIGHT:
                raise ValueError(f"the weight of {name} is {weight}")
            weights[name.removesuffix(_SUFFIX)] = weight
        if weights:
            return weights
    return {}


async def route_weights(
    client: KubeClient, route: ObjectName, *, pace: Pace | None = None
) -> AsyncGenerator[Mapping[str, int], None]:
    """The weights by the clusters' names (empty: not known) at first and after every change.

    Those of a route that vanishes stay in force, as they do while the API server is away.
    """
    namespace, name = route
    last: Mapping[str, int] | None = None
    async with Watches(client, pace=pace) as watches:
        routes = watches.add(HTTP_ROUTES, namespace, read_route, name=name)
        while True:
            await watches.changed()
            if not routes.synced:
                continue
            weights = routes.items.get(name, last or {})
            if weights != last:
                last = weights
                fields = {"route": str(route), "weights": dict(weights)}
                log.info("the clusters have new weights by an HTTPRoute", extra={"fields": fields})
                yield weights
