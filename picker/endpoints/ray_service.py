"""``PICKER_RAY_SERVICE`` and ``PICKER_RAY_CLUSTER``: what KubeRay runs.

A RayService has an active RayCluster and, while it is upgraded, a pending one. Their names are in its status
only, and change with every upgrade: no label of the pods leads to the service.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from picker.endpoints.ray_pods import ClusterPods, endpoints_of
from picker.kube.resource import RAY_SERVICES
from picker.kube.watches import Watches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from picker.endpoints.endpoint import Endpoint
    from picker.endpoints.enriched import Enrich
    from picker.endpoints.ray_pods import RayPod
    from picker.kube.client import Json, KubeClient
    from picker.kube.names import ObjectName
    from picker.kube.watch import Pace

log = logging.getLogger(__name__)

_ALL = 100


@dataclass(frozen=True, slots=True)
class Status:
    """The RayClusters of a RayService, "" for none, and the percents of the traffic they should have.

    ``shared``: whether both have requests, by their weights; else only the active one, until KubeRay makes
    the pending one active.
    """

    active: str = ""
    pending: str = ""
    shared: bool = False
    weights: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def clusters(self) -> tuple[str, ...]:
        """Those there are. The pending one is among them before it has requests, to be known in time."""
        return tuple(dict.fromkeys(filter(None, (self.active, self.pending))))

    @property
    def serving(self) -> tuple[str, ...]:
        """Those whose pods are members. Before the first one is active, it is the pending one."""
        return self.clusters if self.shared else self.clusters[:1]


def read_ray_service(item: Json) -> Status:
    """What is kept of a RayService. Raises ValueError where its percents are none."""
    status = item.get("status") or {}
    active, to_active = _side(status, "activeServiceStatus")
    pending, to_pending = _side(status, "pendingServiceStatus")
    if not (active and pending and active != pending) or to_active is to_pending is None:
        first = active or pending
        return Status(active, pending, weights={first: _ALL} if first else {})
    # Where only one is told, the other has the rest.
    if to_active is None:
        to_active = _ALL - (to_pending or 0)
    if to_pending is None:
        to_pending = _ALL - to_active
    return Status(active, pending, shared=True, weights={active: to_active, pending: to_pending})


def _side(status: Json, key: str) -> tuple[str, int | None]:
    """The name of a cluster and its percent, None where KubeRay does not split the traffic."""
    side = status.get(key) or {}
    percent = side.get("trafficRoutedPercent")
    if percent is not None and percent not in range(_ALL + 1):
        raise ValueError(f"trafficRoutedPercent of {key} is {percent}")
    return side.get("rayClusterName") or "", percent


@dataclass(frozen=True, slots=True)
class _View:
    """The pods of each cluster as KubeRay's status and the API server have it at one time."""

    status: Status
    pods: Mapping[str, tuple[RayPod, ...]]


class RayService:
    """One RayService, followed: its members, the weights of its clusters, what is known of its pods.

    One of :meth:`sets` and :meth:`details` is to be read, which also brings the :meth:`weights` up to date.

    Members are the proxies of pods that are ready; of a head only if KubeRay says that it may serve. So with
    ``proxy_location: HeadOnly`` the head alone is left (workers are never ready then), and workers without
    replicas are not ready either. A RayService that is missing has no endpoints until it is created; one that
    vanishes leaves the pods of its last clusters as long as these are there.
    """

    def __init__(
        self,
        client: KubeClient,
        name: ObjectName,
        *,
        metrics_target_port: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._metrics_port = metrics_target_port
        self._pace = pace
        self._weights: Mapping[str, int] = {}
        self._reweighted = asyncio.Event()
        self._missing: bool | None = None

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        last: tuple[Endpoint, ...] | None = None
        views = self._views()
        try:
            async for view in views:
                pods = [pod for name in view.status.serving for pod in view.pods[name]]
                endpoints = endpoints_of(pods, metrics_target_port=self._metrics_port)
                if endpoints != last:
                    last = endpoints
                    yield endpoints
        finally:
            await views.aclose()

    async def details(self) -> AsyncGenerator[Enrich, None]:
        """What is known of endpoints that another source names, by the address of their pod."""
        views = self._views()
        try:
            async for view in views:
                yield self._enriching({pod.pod.ip: pod for pods in view.pods.values() for pod in pods})
        finally:
            await views.aclose()

    async def weights(self) -> AsyncGenerator[Mapping[str, int], None]:
        """The weights of the clusters by name (empty: not known) at first and after every change."""
        last: Mapping[str, int] | None = None
        while True:
            self._reweighted.clear()
            if self._weights != last:
                last = self._weights
                yield last
            else:
                await self._reweighted.wait()

    async def _views(self) -> AsyncGenerator[_View, None]:
        namespace, name = self._name
        status = Status()
        async with Watches(self._client, pace=self._pace) as watches:
            services = watches.add(RAY_SERVICES, namespace, read_ray_service, name=name)
            pods = ClusterPods(watches, namespace)
            while True:
                await watches.changed()
                if not services.synced:
                    continue
                self._tell(missing=name not in services.items)
                status = services.items.get(name, status)
                known = pods.of(status.clusters)
                if known is None:
                    continue
                if status.weights != self._weights:
                    self._weights = status.weights
                    self._reweighted.set()
                    fields = {"service": str(self._name), "weights": dict(status.weights)}
                    log.info("the clusters of the RayService have new weights", extra={"fields": fields})
                yield _View(status, known)

    def _enriching(self, by_ip: Mapping[str, RayPod]) -> Enrich:
        def enrich(endpoint: Endpoint) -> Endpoint | None:
            pod = by_ip.get(endpoint.address.rpartition(":")[0].removeprefix("[").removesuffix("]"))
            if pod is None:
                return endpoint
            if not pod.may_serve:
                return None
            metrics = pod.metrics_address(self._metrics_port)
            return replace(endpoint, labels={**endpoint.labels, **pod.pod.labels}, metrics_address=metrics)

        return enrich

    def _tell(self, *, missing: bool) -> None:
        if missing == self._missing:
            return
        fields = {"service": str(self._name)}
        if missing:
            log.warning(
                "there is no such RayService; the last known clusters stay until it exists",
                extra={"fields": fields},
            )
        elif self._missing:
            log.info("the RayService exists", extra={"fields": fields})
        self._missing = missing


class RayClusterSource:
    """The members of one RayCluster: the proxies of its pods that are ready.

    A RayCluster that no RayService owns says nothing about serving. Its pods are ready as soon as Ray runs on
    them, so those without a proxy are found out by the scrape loop's probes only.
    """

    def __init__(
        self,
        client: KubeClient,
        name: ObjectName,
        *,
        metrics_target_port: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._metrics_port = metrics_target_port
        self._pace = pace

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        namespace, name = self._name
        last: tuple[Endpoint, ...] | None = None
        async with Watches(self._client, pace=self._pace) as watches:
            clusters = ClusterPods(watches, namespace)
            clusters.of([name])  # begins to watch
            while True:
                await watches.changed()
                known = clusters.of([name])
                if known is None:
                    continue
                endpoints = endpoints_of(known[name], metrics_target_port=self._metrics_port)
                if endpoints != last:
                    last = endpoints
                    yield endpoints
