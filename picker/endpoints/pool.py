"""``PICKER_POOL``: the pods of an InferencePool (``inference.networking.k8s.io/v1``)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.addresses import is_port
from picker.endpoints.pods import PodEndpoints
from picker.endpoints.selected import SelectedPods
from picker.kube.resource import INFERENCE_POOLS
from picker.kube.watches import Watches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from picker.endpoints.endpoint import Endpoint
    from picker.kube.client import Json, KubeClient
    from picker.kube.names import ObjectName
    from picker.kube.watch import Pace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pool:
    """A label selector as the API takes it, and the ports that each selected pod serves on."""

    selector: str
    ports: tuple[int, ...]


def read_pool(item: Json) -> Pool:
    """What is kept of an InferencePool. Raises ValueError where it selects everything or nothing."""
    spec = item["spec"]
    labels = spec["selector"]["matchLabels"]
    ports = tuple(port["number"] for port in spec["targetPorts"])
    if not labels or not ports or not all(map(is_port, ports)):
        raise ValueError("it has no selector or no target ports")
    return Pool(",".join(f"{key}={value}" for key, value in sorted(labels.items())), ports)


class PoolSource:
    """The endpoints of the pool's pods that are ready: one for each of its target ports.

    A pool that is missing, or whose kind is not installed, has no endpoints until it is created. Where the
    API server cannot be asked the last set stays, and the first one is waited for.

    ``metrics_target_port`` is where each pod shows its metrics; without it the endpoint's own port, or what
    KubeRay sets for pods of Ray.
    """

    def __init__(
        self,
        client: KubeClient,
        pool: ObjectName,
        *,
        metrics_target_port: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._pool = pool
        self._metrics_port = metrics_target_port
        self._pace = pace

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        namespace, name = self._pool
        last: tuple[Endpoint, ...] | None = None
        async with Watches(self._client, pace=self._pace) as watches:
            pools = watches.add(INFERENCE_POOLS, namespace, read_pool, name=name)
            selected = SelectedPods(watches, namespace)
            made = PodEndpoints(self._metrics_port)
            missing = False
            while True:
                await watches.changed()
                if not pools.synced:
                    continue
                pool = pools.items.get(name)
                if missing != (pool is None):
                    missing = pool is None
                    self._tell(missing=missing)
                pods = selected.by(pool.selector if pool else None)
                if pods is None:
                    continue
                ports = pool.ports if pool else ()
                endpoints = made.of(pods, ports)
                if endpoints != last:
                    last = endpoints
                    yield endpoints

    def _tell(self, *, missing: bool) -> None:
        fields = {"pool": str(self._pool)}
        if missing:
            log.warning(
                "there is no such InferencePool; no endpoints until it exists", extra={"fields": fields}
            )
        else:
            log.info("the InferencePool exists", extra={"fields": fields})
