"""``PICKER_PODS``: the pods with certain labels, without an InferencePool that selects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picker.endpoints.pods import Pod, PodEndpoints, read_pod
from picker.kube.resource import PODS
from picker.kube.watches import Watches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from picker.endpoints.endpoint import Endpoint
    from picker.kube.client import KubeClient
    from picker.kube.names import PodSelector
    from picker.kube.watch import Pace, Reflector


class SelectedPods:
    """The pods of a label selector that may change."""

    def __init__(self, watches: Watches, namespace: str) -> None:
        self._watches = watches
        self._namespace = namespace
        self._selector: str | None = None
        self._pods: Reflector[Pod] | None = None

    def by(self, selector: str | None) -> list[Pod] | None:
        """The pods, none without a selector; None while they are not known.

        Those of another selector are watched from now on, and known after one of the next changes.
        """
        if selector != self._selector:
            if self._pods is not None:
                self._watches.drop(self._pods)
            self._selector = selector
            self._pods = None
            if selector is not None:
                self._pods = self._watches.add(PODS, self._namespace, read_pod, selector=selector)
        if self._pods is None:
            return []
        return list(self._pods.items.values()) if self._pods.synced else None


class PodsSource:
    """The endpoints of the selected pods that are ready, as an InferencePool of them would have.

    Where the API server cannot be asked the last set stays, and the first one is waited for.
    """

    def __init__(
        self,
        client: KubeClient,
        pods: PodSelector,
        *,
        metrics_target_port: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client = client
        self._namespace, self._selector, self._ports = pods
        self._metrics_port = metrics_target_port
        self._pace = pace

    async def sets(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See :class:`picker.endpoints.endpoint.Source`."""
        last: tuple[Endpoint, ...] | None = None
        async with Watches(self._client, pace=self._pace) as watches:
            selected = SelectedPods(watches, self._namespace)
            selected.by(self._selector)
            made = PodEndpoints(self._metrics_port)
            while True:
                await watches.changed()
                pods = selected.by(self._selector)
                if pods is None:
                    continue
                endpoints = made.of(pods, self._ports)
                if endpoints != last:
                    last = endpoints
                    yield endpoints
