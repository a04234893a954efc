"""A RayService is upgraded step by step, as KubeRay does it, under requests through Envoy and the picker."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.picker import Picker
from bench.rig.servers import SERVED_BY, Servers
from tests.kube.ray import KubeRay
from tests.support.kube.modules import crd_folders
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

pytestmark = [pytest.mark.kube, pytest.mark.envoy]

OLD, NEW = "llm-old", "llm-new"
REWEIGHTED = "the clusters of the RayService have new weights"
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
            return self._picker.child.log_text().count(REWEIGHTED) >= self._reweighted

        await eventually(told)


@asynccontextmanager
async def gateway(
    namespace: Namespace, servers: Servers, directory: Path, clusters: dict[str, str], mode: str
) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as stack:
        picker = Picker(
            {
                "KUBECONFIG": str(namespace.server.kubeconfig()),
                "PICKER_RAY_SERVICE": f"{namespace.name}/llm",
                "PICKER_FALLBACKS": "1",
            },
            directory=directory,
        )
        await stack.enter_async_context(picker)
        ext_proc = ExtProc(address=picker.address, mode="buffered" if mode == "buffered" else "duplex")
        listener = Listener(
            name="gateway", endpoints=servers.addresses, balancer="picker", ext_proc=ext_proc, retries=1
        )
        envoy = await stack.enter_async_context(Envoy(bootstrap([listener])))
        door = Gateway(f"http://{envoy.address('gateway')}", clusters, picker)
        stack.push_async_callback(door.close)
        yield door


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
        async with gateway(namespace, servers, tmp_path, clusters, mode) as door:
            await door.reweighted()
            assert await door.hundred() == {OLD: 100}

            kuberay.pods(NEW, new)
            for percent in (0, 10, 25, 50, 75, 90, 25, 50):  # with a rollback
                kuberay.status(OLD, NEW, (100 - percent, percent))
                await door.reweighted()
                served = await door.hundred()
                assert abs(served[NEW] - percent) <= 1, f"{served} at {percent} %"

            # The old cluster ends while it has requests, and others come.
            long = [asyncio.create_task(door.ask(LONG)) for _ in range(20)]
            await door.hundred()
            flow = asyncio.create_task(door.hundred())
            kuberay.status(NEW)
            await door.reweighted()
            for pod in old_pods:
                namespace.terminate(pod)
            await flow
            assert await door.hundred() == {NEW: 100}
            assert set(await asyncio.gather(*long)) == {OLD, NEW}
            for pod in old_pods:
                namespace.remove(pod)
            assert await door.hundred() == {NEW: 100}
            assert set(door.statuses) == {200}
