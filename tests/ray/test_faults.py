"""Real Ray Serve proxies that die under load: the picker leaves them alone, and comes back to them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import pytest
import yaml

from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.picker import Picker
from bench.rig.ray import RayCluster
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from bench.rig.ray import Proxy

pytestmark = [pytest.mark.ray, pytest.mark.envoy, pytest.mark.timeout(600)]

RATE = 20.0
"""Requests a second; each is answered at once where the proxy is in order."""
FEW = 8
"""Failures until a proxy is out: three to five in a row, and what was under way just then."""
LONG = 120.0
"""Seconds in which Ray has started a proxy or a node again, with the machine busy."""


@dataclass
class Traffic:
    """Requests at a steady rate through the gateway, and what became of each: who served it, its status."""

    url: str
    fates: list[tuple[str, int]] = field(default_factory=list)

    async def flow(self) -> None:
        """Send, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as client, asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._send(client))
                await asyncio.sleep(1 / RATE)

    async def _send(self, client: aiohttp.ClientSession) -> None:
        try:
            async with client.get(f"{self.url}/hello") as answer:
                await answer.read()
                self.fates.append((answer.headers.get("x-served-by", ""), answer.status))
        except aiohttp.ClientError:
            self.fates.append(("", 0))

    def failures(self, since: int) -> int:
        return sum(status != 200 for _, status in self.fates[since:])

    async def comes_to(self, proxy: Proxy) -> None:
        """Wait until ``proxy`` answers well again."""
        since = len(self.fates)

        async def served() -> bool:
            return (proxy.address, 200) in self.fates[since:]

        await eventually(served, within=LONG, every=0.1)

    async def goes_on(self, requests: int) -> int:
        """Wait for that many more requests; returns where they begin."""
        since = len(self.fates)

        async def enough() -> bool:
            return len(self.fates) >= since + requests

        await eventually(enough, within=LONG, every=0.1)
        return since


def endpoints_file(path: Path, proxies: Sequence[Proxy]) -> Path:
    endpoints = [
        {
            "name": f"proxy-{number}",
            "address": proxy.address.rpartition(":")[0],
            "port": int(proxy.address.rpartition(":")[2]),
            "metricsHost": proxy.metrics_address,
        }
        for number, proxy in enumerate(proxies)
    ]
    path.write_text(yaml.safe_dump({"endpoints": endpoints}))
    return path


@asynccontextmanager
async def under_load(cluster: RayCluster, directory: Path) -> AsyncIterator[tuple[Traffic, Picker]]:
    """The picker and Envoy before the cluster, with traffic that reaches every proxy."""
    async with AsyncExitStack() as stack:
        file = endpoints_file(directory / "endpoints.yaml", cluster.proxies)
        picker = await stack.enter_async_context(Picker({"PICKER_ENDPOINTS_FILE": str(file)}))
        listener = Listener(
            name="gateway",
            endpoints=[proxy.address for proxy in cluster.proxies],
            balancer="picker",
            ext_proc=ExtProc(address=picker.address, mode="buffered_streamed"),
            served_by="x-served-by",
        )
        envoy = await stack.enter_async_context(Envoy(bootstrap([listener])))
        traffic = Traffic(f"http://{envoy.address('gateway')}")
        flow = asyncio.create_task(traffic.flow())
        stack.callback(flow.cancel)
        for proxy in cluster.proxies:
            await traffic.comes_to(proxy)
        yield traffic, picker


async def left_alone(traffic: Traffic, since: int, proxy: Proxy) -> None:
    """Check that after the first failures nothing more goes to ``proxy`` but rare trials."""
    await traffic.goes_on(int(3 * RATE))
    begin = await traffic.goes_on(int(5 * RATE))
    tried = [status for served, status in traffic.fates[begin:] if served == proxy.address and status != 200]
    assert len(tried) <= 3, "trials come 1, 2, 4 … seconds apart"
    assert traffic.failures(since) <= FEW + len(tried)


async def test_a_killed_proxy_a_stopped_node_and_a_crashed_one(tmp_path: Path) -> None:
    async with (
        RayCluster(3, max_ongoing=8, max_queued=16) as cluster,
        under_load(cluster, tmp_path) as (traffic, picker),
    ):
        await traffic.goes_on(50)
        assert traffic.failures(0) == 0

        # The process of a proxy dies; Ray starts it again at the same port.
        since = len(traffic.fates)
        await cluster.kill_proxy(1)
        await traffic.goes_on(int(3 * RATE))
        await traffic.comes_to(cluster.proxies[1])
        assert traffic.failures(since) <= FEW + 4

        # A node is stopped: nothing listens there any more.
        since = len(traffic.fates)
        await cluster.stop_node(2)
        await left_alone(traffic, since, cluster.proxies[2])
        await cluster.start_node(2)
        await traffic.comes_to(cluster.proxies[2])

        # A raylet crashes: its proxy says that it is healthy, serves on for some seconds, then
        # answers 500 to everything within milliseconds.
        since = len(traffic.fates)
        await cluster.kill_raylet(1)

        async def fails() -> bool:
            return (cluster.proxies[1].address, 500) in traffic.fates[since:]

        await eventually(fails, within=LONG, every=0.1)
        await left_alone(traffic, since, cluster.proxies[1])
        await cluster.start_node(1)
        await traffic.comes_to(cluster.proxies[1])

        page = await picker.metrics()
        assert 'picker_endpoints{state="breaker_open"} 0.0' in page
        assert "Traceback" not in picker.child.log_text()
