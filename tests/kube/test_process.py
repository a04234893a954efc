"""The picker as a process with its pool in a real Kubernetes API."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.picker import Picker
from picker.kube.lease import Term, lease_name
from picker.kube.names import ObjectName
from tests.support.upstream import upstreams
from tests.support.waiting import eventually
from tests.test_app import ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from picker.extproc._generated.external_processor_pb2 import ProcessingResponse
    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer
    from tests.support.upstream import Upstream

pytestmark = pytest.mark.kube

LEASES = "coordination.k8s.io/v1"
PATIENCE = 30.0
OUTAGE = float(os.environ.get("KUBE_OUTAGE_SECONDS", "5"))
"""The measurement of the documents took 30."""


class Pickers:
    """Starts pickers for the pool ``llm`` of a namespace."""

    def __init__(self, namespace: Namespace, stack: AsyncExitStack, folder: Path) -> None:
        self._namespace = namespace
        self._stack = stack
        self._folder = folder
        self._count = 0

    async def start(self, *, ready: bool = True, **settings: str) -> Picker:
        """One more; ``ready``: and wait until it is, not only until it can be asked whether it is."""
        self._count += 1
        env = {
            "KUBECONFIG": str(self._namespace.server.kubeconfig()),
            "PICKER_POOL": f"{self._namespace.name}/llm",
            **{f"PICKER_{name.upper()}": value for name, value in settings.items()},
        }
        made = Started(env, directory=self._folder / str(self._count))
        made.must_be_ready = ready
        return await self._stack.enter_async_context(made)


class Started(Picker):
    """One that counts as started once it lives, if it is not waited for to be ready."""

    must_be_ready = True

    async def _is_ready(self) -> bool:
        if self.must_be_ready:
            return await super()._is_ready()
        return await status(self, "healthz") == 200


async def status(picker: Picker, path: str) -> int:
    """Of an answer on the metrics port; 0 where there is none."""
    try:
        async with picker._session.get(f"{picker.metrics_url}/{path}") as response:
            return response.status
    except aiohttp.ClientError:
        return 0


async def until(picker: Picker, *, ready: bool, within: float = PATIENCE) -> float:
    """Wait; returns the seconds it took."""
    started = time.monotonic()

    async def so() -> bool:
        return (await status(picker, "readyz") == 200) is ready

    await eventually(so, within=within)
    return time.monotonic() - started


def picked(told: list[ProcessingResponse]) -> str:
    """The endpoint that an answer names; empty for a refusal."""
    options = told[0].request_headers.response.header_mutation.set_headers
    return next(
        (
            option.header.raw_value.decode()
            for option in options
            if option.header.key == "x-gateway-destination-endpoint"
        ),
        "",
    )


@pytest.fixture
async def pickers(namespace: Namespace, tmp_path: Path) -> AsyncIterator[Pickers]:
    async with AsyncExitStack() as stack:
        yield Pickers(namespace, stack, tmp_path)


async def test_a_pool_that_is_missing_at_the_start(namespace: Namespace, pickers: Pickers) -> None:
    picker = await pickers.start()
    assert (await ask(picker))[0].immediate_response.status.code == 503
    namespace.pod("a", "127.0.0.11")
    namespace.pool(ports=[8000])

    async def found() -> bool:
        return picked(await ask(picker)) == "127.0.0.11:8000"

    await eventually(found)
    assert picker.child.log_text().count("there is no such InferencePool") == 1


async def test_an_api_server_that_is_down_at_the_start(
    server: ApiServer, namespace: Namespace, pickers: Pickers
) -> None:
    namespace.pod("a", "127.0.0.11")
    namespace.pool(ports=[8000])
    await asyncio.to_thread(server.program.stop, kill=True)
    try:
        waiting, stopped = await pickers.start(ready=False), await pickers.start(ready=False)
        assert await status(waiting, "readyz") == 503
        stopped.child.terminate()
        assert await stopped.child.wait(PATIENCE) == 0, "it need not be killed"
        assert "Traceback" not in stopped.child.log_text()
    finally:
        await asyncio.to_thread(server.program.start)
    await until(waiting, ready=True)
    assert picked(await ask(waiting)) == "127.0.0.11:8000"


async def test_without_access_it_does_not_start(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{}")
    settings = {"KUBECONFIG": str(config), "PICKER_SERVICE": "default/llm"}
    with pytest.raises(Exception, match=r"PICKER_SERVICE: no access to the Kubernetes API \(KUBECONFIG "):
        async with Picker(settings, directory=tmp_path):
            pass


# Through a gateway


@asynccontextmanager
async def gateway(picker: Picker, servers: list[Upstream]) -> AsyncIterator[str]:
    """A real Envoy before the servers; gives the URL for clients."""
    listener = Listener(
        name="picker",
        endpoints=[server.address for server in servers],
        balancer="picker",
        ext_proc=ExtProc(address=picker.address, mode="buffered"),
    )
    async with Envoy(bootstrap([listener])) as envoy:
        yield f"http://{envoy.address('picker')}"


class Load:
    """Requests one after the other, some at a time, until it is stopped."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = False
        self.good = 0
        self.bad = 0
        self.served: set[str] = set()

    async def run(self) -> None:
        async with aiohttp.ClientSession() as client, asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(self._ask(client))

    def stop(self) -> None:
        self._stop = True

    async def _ask(self, client: aiohttp.ClientSession) -> None:
        while not self._stop:
            async with client.post(f"{self._url}/v1/completions", data=b'{"model":"m"}') as answer:
                await answer.read()
                self.good += answer.status == 200
                self.bad += answer.status != 200
                self.served.add(answer.headers.get("x-served-by", ""))
            await asyncio.sleep(0.01)


def port_of(server: Upstream) -> int:
    return int(server.address.rpartition(":")[2])


@pytest.mark.envoy
async def test_an_outage_of_the_api_server_fails_no_request(
    server: ApiServer,
    namespace: Namespace,
    pickers: Pickers,
    record_property: Callable[[str, object], None],
) -> None:
    async with upstreams(3) as servers:
        ports = [port_of(upstream) for upstream in servers]
        namespace.pool(ports=ports)
        for name, port in zip("ab", ports, strict=False):
            namespace.pod(name, "127.0.0.1", annotations={"llm-d.ai/active-ports": str(port)})
        picker = await pickers.start()
        async with gateway(picker, servers) as url:
            load = Load(url)
            running = asyncio.create_task(load.run())
            await eventually(all_served(load, {servers[0].address, servers[1].address}))
            await asyncio.to_thread(server.program.stop, kill=True)
            try:
                before = load.good
                await asyncio.sleep(OUTAGE)
                assert load.good > before
            finally:
                await asyncio.to_thread(server.program.start)
            namespace.pod("c", "127.0.0.1", annotations={"llm-d.ai/active-ports": str(ports[2])})
            await eventually(all_served(load, {upstream.address for upstream in servers}))
            load.stop()
            await running
            record_property("requests that went well", load.good)
            assert load.bad == 0


def all_served(load: Load, addresses: set[str]) -> Callable[[], Awaitable[bool]]:
    async def so() -> bool:
        return addresses <= load.served

    return so


# Two pickers, one of which leads


async def leader_and_standby(
    namespace: Namespace, pickers: Pickers, drain_delay: str = "0s"
) -> tuple[Picker, Picker]:
    namespace.pod("a", "127.0.0.11")
    namespace.pool(ports=[8000])
    leader = await pickers.start(leader_election="true", drain_delay=drain_delay)
    standby = await pickers.start(ready=False, leader_election="true", drain_delay="0s")

    async def standing_by() -> bool:
        return "standing by" in standby.child.log_text()

    await eventually(standing_by)
    return leader, standby


async def test_a_standby_answers_correctly_and_is_not_ready(namespace: Namespace, pickers: Pickers) -> None:
    _, standby = await leader_and_standby(namespace, pickers)
    assert await status(standby, "readyz") == 503
    assert await status(standby, "healthz") == 200
    assert picked(await ask(standby)) == "127.0.0.11:8000"
    lease = lease_name(ObjectName(namespace.name, "llm")).name
    assert lease == f"epp-{namespace.name}-llm.llm-d.ai"
    spec = namespace.server.request("GET", namespace.path("leases", LEASES, lease))["spec"]
    assert spec["holderIdentity"]


async def test_a_leader_that_is_told_to_end_hands_over_at_once(
    namespace: Namespace, pickers: Pickers
) -> None:
    leader, standby = await leader_and_standby(namespace, pickers, drain_delay="4s")
    leader.child.terminate()
    assert await until(standby, ready=True) < 2.0
    assert leader.child.returncode is None, "in its drain delay it still answers"
    assert picked(await ask(leader)) == "127.0.0.11:8000"
    assert await leader.child.wait(PATIENCE) == 0


async def test_a_leader_that_is_killed_is_followed_within_the_time_of_its_lease(
    namespace: Namespace, pickers: Pickers
) -> None:
    leader, standby = await leader_and_standby(namespace, pickers)
    leader.child._started().kill()
    took = await until(standby, ready=True)
    assert took < Term().duration + 2 * Term().look
