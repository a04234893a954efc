"""The Envoy of the sidecar overlays, run as the pod would run it, but for the addresses."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from bench.rig.envoy import Envoy
from bench.rig.picker import Picker
from bench.rig.ports import LOOPBACK
from tests.kube.manifests import overlay
from tests.support.upstream import lines, upstreams
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.envoy

PATIENCE = 30.0


def bootstrap(picker: str, endpoints: Sequence[str]) -> dict[str, Any]:
    """The overlay's, with addresses of this machine and free ports."""
    config: dict[str, Any] = yaml.safe_load(overlay("sidecar").one("ConfigMap")["data"]["envoy.yaml"])
    for place in (config["admin"], *config["static_resources"]["listeners"]):
        place["address"] = socket_address(f"{LOOPBACK}:0")
    pool, asked = config["static_resources"]["clusters"]
    for cluster, addresses in ((pool, endpoints), (asked, [picker])):
        members = [{"endpoint": {"address": socket_address(address)}} for address in addresses]
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": members}]
    return config


def socket_address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


class Pod:
    """Envoy and the picker before two servers."""

    def __init__(self, envoy: Envoy, picker: Picker, client: aiohttp.ClientSession) -> None:
        self.envoy = envoy
        self.picker = picker
        self.client = client

    async def ask(self, path: str = "/v1/completions") -> tuple[int, bytes]:
        url = f"http://{self.envoy.address('gateway')}{path}"
        async with self.client.post(url, data=b'{"model":"m","prompt":"p"}') as response:
            return response.status, await response.read()

    async def ready(self) -> int:
        """What the kubelet is told."""
        async with self.client.get(f"http://{self.envoy.address('ready')}/ready") as response:
            return response.status

    async def decisions(self) -> float:
        page = await self.picker.metrics()
        lines = [line for line in page.splitlines() if line.startswith("picker_decisions_total")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def drain(self) -> asyncio.subprocess.Process:
        """Start Envoy's preStop hook."""
        script = overlay("sidecar").one("ConfigMap")["data"]["drain.sh"]
        env = {
            "PATH": "/usr/bin:/bin",
            "ENVOY_ADMIN_PORT": self.envoy.admin_url.rpartition(":")[2],
            "ENVOY_DRAIN_DELAY": "0",
        }
        return await asyncio.create_subprocess_exec("bash", "-c", script, env=env)


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(upstreams(2))
        addresses = [server.address for server in servers]
        env = {
            "PICKER_ENDPOINTS": ",".join(addresses),
            "PICKER_SECURE_SERVING": "true",
            "PICKER_FALLBACKS": "1",
        }
        picker = await stack.enter_async_context(Picker(env, directory=tmp_path))
        envoy = await stack.enter_async_context(Envoy(bootstrap(picker.address, addresses)))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Pod(envoy, picker, client)


async def test_the_picker_is_asked_and_may_be_away(pod: Pod) -> None:
    assert await pod.ready() == HTTPStatus.OK
    assert (await pod.ask())[0] == HTTPStatus.OK
    assert await pod.decisions() == 1
    pod.picker.child.terminate()
    await pod.picker.child.wait(PATIENCE)
    assert (await pod.ask())[0] == HTTPStatus.OK


async def test_it_drains_before_it_ends(pod: Pod) -> None:
    running = asyncio.create_task(pod.ask("/lines?count=20&interval=0.1"))

    async def active() -> bool:
        stats = await pod.envoy.stats("downstream_rq_active")
        return stats["http.gateway.downstream_rq_active"] == 1

    await eventually(active)
    hook = await pod.drain()

    async def withdrawn() -> bool:
        return await pod.ready() == HTTPStatus.SERVICE_UNAVAILABLE

    await eventually(withdrawn)
    assert hook.returncode is None
    assert (await pod.ask())[0] == HTTPStatus.OK  # whoever has not heard of it is served
    assert await running == (HTTPStatus.OK, lines(20))
    async with asyncio.timeout(PATIENCE):
        assert await hook.wait() == 0
