"""Two pickers before one Envoy, which asks the one that leads: it ends, is killed, or both are replaced."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import orjson
import pytest

from bench.rig.envoy import HEALTH_SECONDS, Envoy, ExtProc, Listener, bootstrap
from bench.rig.load import (
    Request,
    Target,
    failures,
    latencies,
    open_loop,
    percentile,
    poisson_arrivals,
)
from bench.rig.picker import Picker
from bench.rig.ports import free_port
from bench.rig.servers import Servers
from picker.kube.lease import Term, lease_name
from picker.kube.names import ObjectName
from tests.kube.manifests import install_kinds
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bench.rig.load import Result
    from tests.kube.cluster import Namespace
    from tests.support.kube.server import ApiServer

pytestmark = [pytest.mark.kube, pytest.mark.timeout(400)]

LEASES = "coordination.k8s.io/v1"
PATIENCE = 60.0
SERVERS, SLOTS, WORK = 4, 4, 0.4
"""Each server works on so many requests at a time, on each for so many seconds."""
KNEE = SERVERS * SLOTS / WORK
"""Requests a second: where the time of requests begins to grow without end."""
WINDOW = 10.0
"""Seconds over which requests are compared, before and after something happens."""
BODY = orjson.dumps({"model": "m", "sleep": WORK, "messages": [{"role": "user", "content": "hi"}]})


class Candidate(Picker):
    """One of two pickers; it counts as started once it lives, for one of them is never ready."""

    async def _is_ready(self) -> bool:
        return "leading" in self.child.log_text() or "standing by" in self.child.log_text()

    async def leads(self, *, within: float = PATIENCE) -> None:
        """Wait until it says that it is ready."""
        await eventually(super()._is_ready, within=within)

    def kill(self) -> None:
        """Send SIGKILL and return at once."""
        self.child._started().kill()


class Pair:
    """The pickers at two addresses; whoever ends can be replaced, by another one at the same address."""

    def __init__(self, env: dict[str, str], folder: Path, stack: AsyncExitStack) -> None:
        self._env = env
        self._folder = folder
        self._stack = stack
        self._ports = (free_port(), free_port())
        self._started = 0

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports]

    async def start(self, which: int) -> Candidate:
        """Start one and wait until it knows whether it leads."""
        self._started += 1
        env = {**self._env, "PICKER_LEADER_ELECTION": "true", "PICKER_GRPC_PORT": str(self._ports[which])}
        made = Candidate(env, directory=self._folder / str(self._started), ready_timeout=PATIENCE)
        return await self._stack.enter_async_context(made)


@asynccontextmanager
async def pair_of(namespace: Namespace, folder: Path, **env: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        yield Pair({"KUBECONFIG": str(namespace.server.kubeconfig()), **env}, folder, stack)


def holder(namespace: Namespace) -> str:
    """Who has the Lease of the pickers of ``llm``."""
    name = lease_name(ObjectName(namespace.name, "llm")).name
    lease = namespace.server.request("GET", namespace.path("leases", LEASES, name))
    found: str = lease["spec"]["holderIdentity"]
    return found


@pytest.mark.parametrize("setting", ["POOL", "SERVICE", "RAY_SERVICE", "RAY_CLUSTER"])
async def test_one_of_two_leads_whatever_names_the_endpoints(
    server: ApiServer, namespace: Namespace, tmp_path: Path, setting: str
) -> None:
    install_kinds(server)
    env = {f"PICKER_{setting}": f"{namespace.name}/llm"}
    async with pair_of(namespace, tmp_path, **env) as pair:
        first = await pair.start(0)
        await first.leads()
        second = await pair.start(1)
        assert "standing by" in second.child.log_text()
        before = holder(namespace)
        first.child.terminate()
        await second.leads()
        assert holder(namespace) not in {before, ""}
        assert await first.child.wait(PATIENCE) == 0
        second.child.terminate()
        assert await second.child.wait(PATIENCE) == 0
        assert holder(namespace) == ""


# Under load, through Envoy


class Door:
    """Envoy before the servers and both pickers, with the first of them leading."""

    def __init__(self, envoy: Envoy, pair: Pair, leader: Candidate, standby: Candidate) -> None:
        self.pair = pair
        self.leader = leader
        self.standby = standby
        self._target = Target(address=envoy.address("gateway"))
        self._load: asyncio.Task[list[Result]]
        self._start = 0.0

    def load(self, rate: float, seconds: float) -> None:
        """Begin to send requests, for so long."""
        arrivals = poisson_arrivals(rate, seconds, random.Random(3))
        self._start = time.perf_counter()
        self._load = asyncio.create_task(
            open_loop(self._target, [Request(body=BODY, at=arrival) for arrival in arrivals])
        )

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self._start

    async def results(self) -> list[Result]:
        """What became of all requests."""
        return await self._load


@pytest.fixture
async def opened(namespace: Namespace, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    """``request.param``: whether requests go on without a picker where none is ready."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(
            Servers(count=SERVERS, max_ongoing=SLOTS, report_interval=0.5, page_bytes=10_000)
        )
        ports = [int(address.rpartition(":")[2]) for address in servers.addresses]
        namespace.pod("a", "127.0.0.1")
        namespace.pool(ports=ports)
        env = {
            "PICKER_POOL": f"{namespace.name}/llm",
            "PICKER_FALLBACKS": "1",
            "PICKER_DRAIN_DELAY": f"{3 * HEALTH_SECONDS:g}s",
            "PICKER_DECISION_TIMEOUT": "1s",
        }
        pair = await stack.enter_async_context(pair_of(namespace, tmp_path, **env))
        leader = await pair.start(0)
        await leader.leads()
        standby = await pair.start(1)
        address, other = pair.addresses
        ext_proc = ExtProc(
            address=address,
            others=[other],
            failure_mode_allow=request.param,
            message_timeout=10.0,  # the machine may be busy
        )
        listener = Listener(name="gateway", endpoints=servers.addresses, balancer="picker", ext_proc=ext_proc)
        envoy = await stack.enter_async_context(Envoy(bootstrap([listener])))

        async def seen() -> bool:
            stats = await envoy.stats("cluster.picker-gateway.membership_healthy")
            return stats["cluster.picker-gateway.membership_healthy"] == 1

        await eventually(seen)
        yield Door(envoy, pair, leader, standby)


fail_closed = pytest.mark.parametrize("opened", [False], indirect=True, ids=["fail closed"])
fail_open = pytest.mark.parametrize("opened", [True], indirect=True, ids=["fail open"])


@pytest.mark.envoy
@fail_closed
async def test_a_leader_that_is_told_to_end_costs_no_request(opened: Door) -> None:
    opened.load(rate=20.0, seconds=20.0)
    await asyncio.sleep(3.0)
    opened.leader.child.terminate()
    await opened.standby.leads()
    assert await opened.leader.child.wait(PATIENCE) == 0
    assert failures(await opened.results()) == {}


@pytest.mark.envoy
@fail_open
async def test_a_leader_that_is_killed_costs_no_request_but_those_under_way(
    opened: Door, record_property: Callable[[str, object], None]
) -> None:
    term = Term()
    opened.load(rate=20.0, seconds=3.0 + term.duration + 10.0)
    await asyncio.sleep(3.0)
    killed = opened.now
    opened.leader.kill()
    await opened.standby.leads()
    took = opened.now - killed
    results = await opened.results()
    assert took < term.duration + 2 * term.look
    failed = [result.start for result in results if not result.ok]
    record_property("failed", len(failed))
    record_property("seconds until the other one led", round(took, 1))
    assert all(killed - 5 * WORK <= start <= killed + 0.1 for start in failed), (killed, failed)


@pytest.mark.envoy
@fail_closed
async def test_both_are_replaced_one_after_the_other_near_the_knee(
    opened: Door, record_property: Callable[[str, object], None]
) -> None:
    opened.load(rate=0.8 * KNEE, seconds=6 * WINDOW)
    await asyncio.sleep(WINDOW)
    moments: list[float] = []
    leader, standby = opened.leader, opened.standby
    for which in (0, 1):
        moments.append(opened.now)
        leader.child.terminate()
        await standby.leads()
        assert await leader.child.wait(PATIENCE) == 0
        leader, standby = standby, await opened.pair.start(which)
        await asyncio.sleep(max(0.0, moments[-1] + WINDOW - opened.now))
    results = await opened.results()
    assert failures(results) == {}
    before, *after = (
        percentile(latencies(result for result in results if start <= result.start < start + WINDOW), 90)
        for start in (moments[0] - WINDOW, *moments)
    )
    record_property("p90 before and after each", [round(value, 3) for value in (before, *after)])
    record_property("ratios", [round(value / before, 2) for value in after])
