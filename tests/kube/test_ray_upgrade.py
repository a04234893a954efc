"""A RayService is upgraded step by step, as KubeRay does it, under requests through Envoy and the picker."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.picker import Picker
from bench.rig.ray import RayCluster
from bench.rig.servers import SERVED_BY, Servers
from tests.kube.manifests import install_kinds
from tests.kube.ray import KubeRay
from tests.support.kube.modules import crd_folders
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

pytestmark = [pytest.mark.kube, pytest.mark.envoy]

OLD, NEW = "llm-old", "llm-new"
REWEIGHTED = (
    "the clusters of the RayService have new weights",
    "the clusters have new weights by an HTTPRoute",
)
AT_ONCE = 4
LONG = 4.0
"""Seconds that a request takes in which a hundred short ones are served."""


@pytest.fixture
def kuberay(server: ApiServer, namespace: Namespace) -> KubeRay:
    server.install_crds(crd_folders()["ray-operator"] / "ray.io_rayservices.yaml")
    return KubeRay(namespace)


class Gateway:
    """Requests through the gateway; which cluster served each, and that all went well."""

    def __init__(self, url: str, clusters: dict[str, str], picker: Picker) -> None:
        self._url = url
        self._clusters = clusters
        self._picker = picker
        self._reweighted = 0
        self._client = aiohttp.ClientSession()
        self.statuses: Counter[int] = Counter()

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, sleep: float = 0.0, *, body: bool = True) -> str:
        """One request; the cluster that served it. With a body the gateway asks the picker twice."""
        url = f"{self._url}/v1/chat/completions"
        content = {"model": "demo", "sleep": sleep, "messages": [{"role": "user", "content": "hi"}]}
        asked = self._client.post(url, json=content) if body else self._client.get(f"{self._url}/hello")
        async with asked as response:
            await response.read()
            self.statuses[response.status] += 1
            return self._clusters[response.headers[SERVED_BY]]

    async def hundred(self) -> Counter[str]:
        """Who served a hundred requests, some at the same time, with and without body."""

        async def some(number: int) -> list[str]:
            return [await self.ask(body=bool((number + index) % 3)) for index in range(100 // AT_ONCE)]

        found = await asyncio.gather(*map(some, range(AT_ONCE)))
        return Counter(cluster for part in found for cluster in part)

    async def reweighted(self) -> None:
        """Wait until the picker knows that the weights are others than before."""
        self._reweighted += 1

        async def told() -> bool:
            return sum(map(self._picker.child.log_text().count, REWEIGHTED)) >= self._reweighted

        await eventually(told)


@asynccontextmanager
async def gateway(
    namespace: Namespace,
    servers: Sequence[str],
    directory: Path,
    clusters: dict[str, str],
    mode: str = "buffered",
    **env: str,
) -> AsyncIterator[Gateway]:
    """Envoy and a picker before ``servers``; without ``env`` it follows the RayService."""
    async with AsyncExitStack() as stack:
        picker = Picker(
            {
                "KUBECONFIG": str(namespace.server.kubeconfig()),
                "PICKER_FALLBACKS": "1",
                **(env or {"PICKER_RAY_SERVICE": f"{namespace.name}/llm"}),
            },
            directory=directory,
        )
        await stack.enter_async_context(picker)
        ext_proc = ExtProc(address=picker.address, mode="buffered" if mode == "buffered" else "duplex")
        listener = Listener(
            name="gateway",
            endpoints=servers,
            balancer="picker",
            ext_proc=ext_proc,
            retries=1,
            served_by=SERVED_BY,
        )
        envoy = await stack.enter_async_context(Envoy(bootstrap([listener])))
        door = Gateway(f"http://{envoy.address('gateway')}", clusters, picker)
        stack.push_async_callback(door.close)
        yield door


class Upgrade:
    """What KubeRay does in an upgrade, and what requests see of it."""

    def __init__(
        self, door: Gateway, namespace: Namespace, kuberay: KubeRay, old_pods: Sequence[str]
    ) -> None:
        self._door = door
        self._namespace = namespace
        self._kuberay = kuberay
        self._old_pods = old_pods
        self.served: list[tuple[int, int]] = []
        """The percent of the new cluster, and what it served of a hundred."""

    async def step(self, percent: int) -> None:
        """Let the new cluster have so much of the traffic."""
        self._kuberay.status(OLD, NEW, (100 - percent, percent))
        await self._door.reweighted()
        found = await self._door.hundred()
        self.served.append((percent, found[NEW]))
        assert abs(found[NEW] - percent) <= 1, percent
        assert found.total() == 100

    async def end_old(self, vanish: Callable[[], Awaitable[None]] | None = None) -> None:
        """The old cluster ends while it has requests, and others come."""
        door = self._door
        long = [asyncio.create_task(door.ask(LONG)) for _ in range(20)]
        await door.hundred()
        flow = asyncio.create_task(door.hundred())
        self._kuberay.status(NEW)
        await door.reweighted()
        for pod in self._old_pods:
            self._namespace.terminate(pod)
        await flow
        assert await door.hundred() == {NEW: 100}
        assert set(await asyncio.gather(*long)) == {OLD, NEW}
        flow = asyncio.create_task(door.hundred())
        if vanish:
            await vanish()
        for pod in self._old_pods:
            self._namespace.remove(pod)
        assert await flow == {NEW: 100}
        assert await door.hundred() == {NEW: 100}
        assert set(door.statuses) == {200}


STEPS = (0, 10, 25, 50, 75, 90, 25, 50)
"""With a rollback."""


@pytest.mark.parametrize("mode", ["buffered", "duplex"])
async def test_each_step_has_its_ratio_and_no_request_fails(
    namespace: Namespace, kuberay: KubeRay, tmp_path: Path, mode: str
) -> None:
    # The half-scaled new cluster has one proxy, the old one three: loads alone would not give these ratios.
    async with Servers(count=4, report_interval=0.2, page_bytes=1000) as servers:
        old, new = servers.addresses[:3], servers.addresses[3:]
        clusters = {**dict.fromkeys(old, OLD), **dict.fromkeys(new, NEW)}
        old_pods = kuberay.pods(OLD, old)
        kuberay.status(OLD)
        async with gateway(namespace, servers.addresses, tmp_path, clusters, mode) as door:
            await door.reweighted()
            assert await door.hundred() == {OLD: 100}
            kuberay.pods(NEW, new)
            upgrade = Upgrade(door, namespace, kuberay, old_pods)
            for percent in STEPS:
                await upgrade.step(percent)
            await upgrade.end_old()


@pytest.mark.ray
@pytest.mark.timeout(600)
async def test_so_it_is_with_two_real_clusters_of_which_one_vanishes(
    namespace: Namespace,
    kuberay: KubeRay,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    async with AsyncExitStack() as stack:
        # Room enough: what is full while the machine is busy is not what this looks for.
        old, new = [
            await stack.enter_async_context(RayCluster(nodes, max_ongoing=100, max_queued=1000))
            for nodes in (2, 1)
        ]
        clusters = {
            **{proxy.address: OLD for proxy in old.proxies},
            **{proxy.address: NEW for proxy in new.proxies},
        }
        old_pods = pods_of(kuberay, OLD, old)
        kuberay.status(OLD)
        async with gateway(namespace, list(clusters), tmp_path, clusters) as door:
            await door.reweighted()
            assert await door.hundred() == {OLD: 100}
            pods_of(kuberay, NEW, new)
            upgrade = Upgrade(door, namespace, kuberay, old_pods)
            for percent in STEPS:
                await upgrade.step(percent)
            await upgrade.end_old(old.close)
            record_property("of a hundred, the new cluster served", upgrade.served)
            record_property("requests by status", dict(door.statuses))


def pods_of(kuberay: KubeRay, name: str, cluster: RayCluster) -> list[str]:
    """A pod for each node of a real cluster."""
    addresses = [proxy.address for proxy in cluster.proxies]
    return kuberay.pods(name, addresses, [proxy.metrics_address for proxy in cluster.proxies])


class Route:
    """An HTTPRoute named ``llm`` that splits traffic between the Services of both clusters."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._collection = namespace.path("httproutes", "gateway.networking.k8s.io/v1")

    def create(self, old: int, new: int) -> None:
        body = {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": "llm"},
            "spec": self._spec(old, new),
        }
        self._namespace.server.request("POST", self._collection, body)

    def change(self, old: int, new: int) -> None:
        self._namespace.patch(f"{self._collection}/llm", {"spec": self._spec(old, new)})

    def delete(self) -> None:
        self._namespace.server.request("DELETE", f"{self._collection}/llm")

    @staticmethod
    def _spec(old: int, new: int) -> dict[str, Any]:
        weights = {OLD: old, NEW: new}
        backends = [
            {"name": f"{name}-serve-svc", "port": 8000, "weight": weight} for name, weight in weights.items()
        ]
        return {"rules": [{"backendRefs": backends}]}


async def test_the_weights_of_a_route_that_is_named_rule(
    server: ApiServer, namespace: Namespace, kuberay: KubeRay, tmp_path: Path
) -> None:
    install_kinds(server)
    async with Servers(count=3, report_interval=0.2, page_bytes=1000) as servers:
        addresses = servers.addresses
        clusters = {addresses[0]: OLD, addresses[1]: OLD, addresses[2]: NEW}
        kuberay.pods(OLD, addresses[:2])
        kuberay.pods(NEW, addresses[2:])
        kuberay.status(OLD, NEW, (50, 50))
        route = Route(namespace)
        route.create(90, 10)
        env = {"PICKER_RAY_SERVICE": f"{namespace.name}/llm", "PICKER_HTTP_ROUTE": f"{namespace.name}/llm"}
        async with gateway(namespace, addresses, tmp_path, clusters, **env) as door:
            await door.reweighted()  # by the RayService, whose weights do not count
            await door.reweighted()
            assert await door.hundred() == {OLD: 90, NEW: 10}
            route.change(3, 2)
            await door.reweighted()
            assert await door.hundred() == {OLD: 60, NEW: 40}
            route.delete()
            assert await door.hundred() == {OLD: 60, NEW: 40}
            route.create(0, 1)
            await door.reweighted()
            assert await door.hundred() == {NEW: 100}
            assert set(door.statuses) == {200}
