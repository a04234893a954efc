"""The local RayCluster: what starts, what can be broken in it, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest

from bench.rig import procs
from bench.rig.child import PROJECT
from bench.rig.ray import RayCluster, RayError
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.rig.ray import Proxy

START = 240.0
SOON = 60.0
soon = partial(eventually, within=SOON, every=0.2)
needs_ray = [pytest.mark.ray, pytest.mark.timeout(600)]


async def status(proxy: Proxy, path: str = "/hello", **options: Any) -> int:
    """The status of an answer; 0 if there was none."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
            session.get(f"http://{proxy.address}{path}", **options) as response,
        ):
            await response.read()
            return response.status
    except (aiohttp.ClientError, TimeoutError):
        return 0


async def is_ok(proxy: Proxy) -> bool:
    return await status(proxy) == 200


def wildcard_listeners(session: int) -> set[str]:
    """The local addresses, other than loopback ones, on which processes of a session listen."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for line in (procs.PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == procs.LISTENING and not set(fields[1].partition(":")[0]) - {"0"}:
                inodes[f"socket:[{fields[9]}]"] = fields[1]
    found = set()
    for pid in procs.session_members(session):
        for descriptor in (procs.PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(inodes.get(str(descriptor.readlink()), ""))
    return found - {""}


@asynccontextmanager
async def command_line(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.rig.ray", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=PROJECT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def test_too_few_ports_are_refused_before_anything_starts() -> None:
    with pytest.raises(RayError, match="3 nodes need 3 HTTP and 3 metrics ports"):
        RayCluster(3, http_ports=[1, 2])


async def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    cluster = RayCluster(1)

    with pytest.raises(RayError, match=r"pip install .*ray\[serve\]"):
        async with cluster:
            pass

    assert not cluster.directory.exists()


async def test_a_command_to_a_cluster_that_does_not_run_is_an_error() -> None:
    cluster = RayCluster(1)
    await cluster.close()

    with pytest.raises(RayError, match="does not run"):
        await cluster.kill_proxy(0)


def test_the_listener_of_a_port_is_found_and_a_closed_port_has_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        assert procs.listener(port) == os.getpid()
    assert procs.listener(port) is None


async def test_a_session_is_killed_with_children_that_left_their_parent() -> None:
    script = "(sleep 600 &) ; sleep 600 & echo ready; wait"
    leader = await asyncio.create_subprocess_exec(
        "sh", "-c", script, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    assert await leader.stdout.readline() == b"ready\n"
    assert len(procs.session_members(leader.pid)) >= 3

    procs.kill_session(leader.pid)

    assert await leader.wait() == -signal.SIGKILL
    assert procs.session_members(leader.pid) == []
    await leader.communicate()


class TestCluster:
    """One cluster for all the ways to break it: its start is what costs."""

    pytestmark = needs_ray

    async def test_its_proxies_can_be_broken_one_by_one_and_come_back(self) -> None:
        async with RayCluster(2, max_ongoing=1, max_queued=1) as cluster:
            session = os.getsid(cluster.raylet_pids[0])
            await self.check_answers(cluster)
            assert wildcard_listeners(session) == set()
            await self.check_metrics(cluster)
            await self.check_back_pressure(cluster)
            await self.check_refusals(cluster)
            await self.check_killed_proxy(cluster)
            await self.check_stopped_node(cluster)
            await self.check_crashed_node(cluster)
            directory = cluster.directory

        assert procs.session_members(session) == []
        assert not directory.exists()

    async def check_answers(self, cluster: RayCluster) -> None:
        for proxy in cluster.proxies:
            assert await status(proxy) == 200
            assert await status(proxy, headers={"x-fail-status": "500"}) == 500
        url = f"http://{cluster.proxies[1].address}/v1/chat/completions"
        body = {"model": "demo", "stream": True, "chunks": 3, "interval": 0, "sleep": 0}
        async with aiohttp.ClientSession() as session:
            async with session.post(url, json=body) as response:
                events = (await response.text()).split("\n\n")
            async with session.post(url, json={"sleep": 0}) as response:
                answer = await response.json()
            async with session.post(url, json={"sleep": -1}) as response:
                assert response.status == 422
        assert len(events) == 5
        assert events[3] == "data: [DONE]"
        assert answer["worker"]["node"] in {0, 1}

    async def check_metrics(self, cluster: RayCluster) -> None:
        async def shows_its_load(proxy: Proxy) -> bool:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{proxy.metrics_address}/metrics") as response,
            ):
                return "ray_serve_num_ongoing_requests_at_replicas{" in await response.text()

        for proxy in cluster.proxies:
            await soon(partial(shows_its_load, proxy))

    async def check_back_pressure(self, cluster: RayCluster) -> None:
        url = f"http://{cluster.proxies[1].address}/v1/chat/completions"

        async def post(session: aiohttp.ClientSession) -> int:
            async with session.post(url, json={"sleep": 1}) as response:
                await response.read()
                return response.status

        async with aiohttp.ClientSession() as session:
            statuses = await asyncio.gather(*(post(session) for _ in range(12)))
        assert set(statuses) == {200, 503}

    async def check_refusals(self, cluster: RayCluster) -> None:
        for command, reason in {
            "stop-node 0": "node 0 is the head",
            "kill-raylet 0": "node 0 is the head",
            "stop-node 7": "no running node 7",
            "start-node 1": "runs already",
            "kill-proxy": "needs one number",
            "dance 1": "unknown command 'dance'",
        }.items():
            with pytest.raises(RayError, match=reason):
                await cluster.command(command)

    async def check_killed_proxy(self, cluster: RayCluster) -> None:
        killed = await cluster.proxy_pid(1)
        await cluster.kill_proxy(1)

        async def another_listens() -> bool:
            return procs.listener(int(cluster.proxies[1].address.rpartition(":")[2])) not in {killed, None}

        await soon(another_listens)
        await soon(lambda: is_ok(cluster.proxies[1]))

    async def check_stopped_node(self, cluster: RayCluster) -> None:
        await cluster.stop_node(1)
        assert await status(cluster.proxies[1]) == 0
        await soon(lambda: is_ok(cluster.proxies[0]))
        await cluster.start_node(1)
        assert await status(cluster.proxies[1], "/-/healthz") == 200

    async def check_crashed_node(self, cluster: RayCluster) -> None:
        await cluster.kill_raylet(1)

        async def fails() -> bool:
            return await status(cluster.proxies[1]) in {0, 500}

        await soon(fails)
        await cluster.start_node(1)
        await soon(lambda: is_ok(cluster.proxies[1]))


@pytest.mark.ray
@pytest.mark.timeout(600)
async def test_nothing_is_left_when_whoever_started_the_cluster_is_killed() -> None:
    async with command_line("--nodes", "1") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        async with asyncio.timeout(START):
            node = orjson.loads(await process.stdout.readline())["nodes"][0]
        process.stdin.write(b"proxy-pid 0\nnonsense\n")
        async with asyncio.timeout(SOON):
            assert orjson.loads(await process.stdout.readline()) == {"ok": True, "value": node["proxy_pid"]}
            assert not orjson.loads(await process.stdout.readline())["ok"]
        session = os.getsid(node["raylet_pid"])

        process.kill()

        async def nothing_is_left() -> bool:
            return not procs.session_members(session)

        await soon(nothing_is_left)
