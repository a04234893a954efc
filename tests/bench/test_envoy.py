"""The bootstrap, judged by the real Envoy, and Envoy's own balancing over simulated servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import orjson
import pytest
from aiohttp import web

from bench.e2e.subject import running
from bench.rig.child import ChildError
from bench.rig.cpu import cpu_seconds, resident_bytes
from bench.rig.envoy import (
    MODES,
    Envoy,
    ExtProc,
    Listener,
    bootstrap,
)
from bench.rig.load import Request, Target, closed_loop, failures, open_loop, shares
from bench.rig.ports import free_port
from bench.rig.servers import Servers
from picker.gateway.binary import envoy_binary, first_error
from picker.gateway.envoy_config import DESTINATION

if TYPE_CHECKING:
    from pathlib import Path

    from bench.rig.envoy import Mode
    from picker.gateway.envoy_config import Balancer

pytestmark = pytest.mark.envoy

NOBODY = "127.0.0.1:1"


def asking(name: str, mode: Mode = "buffered", *, tls: bool = False) -> Listener:
    """A listener whose picker nobody runs."""
    ext_proc = ExtProc(address=NOBODY, mode=mode, tls=tls)
    return Listener(name=name, endpoints=[NOBODY], balancer="picker", ext_proc=ext_proc)


async def test_the_real_envoy_accepts_every_body_mode_and_balancer(tmp_path: Path) -> None:
    own: list[Balancer] = ["round_robin", "least_request"]
    listeners = [Listener(name=name, endpoints=[NOBODY, "[::1]:1"], balancer=name) for name in own]
    listeners += [asking(f"{mode}-{tls}", mode, tls=tls) for mode in MODES for tls in (False, True)]
    config = tmp_path / "envoy.json"
    config.write_bytes(orjson.dumps(bootstrap(listeners, access_log=tmp_path / "access.log")))

    process = await asyncio.create_subprocess_exec(
        envoy_binary(),
        *("--mode", "validate", "--config-path", config),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(30):
        output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()


def test_ext_proc_and_the_balancer_picker_go_together() -> None:
    with pytest.raises(ValueError, match="ext_proc goes with the balancer 'picker'"):
        Listener(name="a", endpoints=[NOBODY], balancer="picker")
    with pytest.raises(ValueError, match="ext_proc goes with the balancer 'picker'"):
        Listener(name="a", endpoints=[NOBODY], ext_proc=ExtProc(address=NOBODY))


async def test_a_refused_configuration_is_told_in_envoys_words() -> None:
    config = bootstrap([Listener(name="a", endpoints=["not-an-address:1"])])

    with pytest.raises(ChildError, match=r"Envoy refuses to run: .*malformed IP address: not-an-address"):
        async with Envoy(config):
            pass


async def test_a_taken_port_is_an_error_not_a_shared_port() -> None:
    port = free_port()
    config = bootstrap([Listener(name="a", endpoints=[NOBODY], port=port)])

    async with Envoy(config) as first:
        assert first.address("a") == f"127.0.0.1:{port}"
        with pytest.raises(ChildError, match="Address already in use"):
            async with Envoy(config):
                pass


def test_an_unknown_log_has_no_first_error() -> None:
    assert first_error("all is well\n") == ""


async def test_round_robin_over_two_servers(tmp_path: Path) -> None:
    access_log = tmp_path / "access.log"
    async with Servers(count=2) as servers:
        listener = Listener(name="rr", endpoints=servers.addresses)
        async with Envoy(bootstrap([listener], access_log=access_log), directory=tmp_path) as envoy:
            target = Target(address=envoy.address("rr"), timeout=30)
            results = await open_loop(target, [Request(b"{}") for _ in range(20)])
            stats = await envoy.stats("cluster.pool-rr.upstream_rq_total")
            assert cpu_seconds(envoy.pid) > 0
            assert resident_bytes(envoy.pid) > 1_000_000

    assert not failures(results)
    assert shares(results) == dict.fromkeys(sorted(servers.addresses), 0.5)
    assert stats == {"cluster.pool-rr.upstream_rq_total": 20}
    lines = [orjson.loads(line) for line in access_log.read_text().splitlines()]
    assert Counter(line["upstream"] for line in lines) == dict.fromkeys(servers.addresses, 10)


async def test_listeners_of_one_envoy_have_their_own_balancers() -> None:
    async with Servers() as servers:
        listeners = [
            Listener(name="open", endpoints=servers.addresses, balancer="least_request"),
            asking("refusing"),
        ]
        async with Envoy(bootstrap(listeners)) as envoy:
            for name, expected in (("open", {}), ("refusing", {"500": 1})):
                target = Target(address=envoy.address(name), timeout=30)
                assert failures(await open_loop(target, [Request(b"{}")])) == expected


async def test_a_retry_goes_past_a_dead_endpoint() -> None:
    async with Servers() as servers:
        endpoints = [NOBODY, *servers.addresses]
        listeners = [Listener(name=f"{retries}", endpoints=endpoints, retries=retries) for retries in (0, 1)]
        async with Envoy(bootstrap(listeners)) as envoy:
            failed = {"0": 0, "1": 0}
            for name in failed:
                for _ in range(4):
                    results = await open_loop(Target(address=envoy.address(name), timeout=30), [Request()])
                    failed[name] += len(failures(results))

    assert failed == {"0": 2, "1": 0}


async def test_only_the_picker_chooses_and_its_choice_reaches_the_server(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append(request.headers.get(DESTINATION))
        return web.Response()

    access_log = tmp_path / "access.log"
    spoofed = Request(b"{}", headers={DESTINATION: NOBODY})
    async with AsyncExitStack() as stack:
        runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint = "{}:{}".format(*runner.addresses[0])
        subject = await stack.enter_async_context(running("yardstick", [endpoint]))
        ext_proc = ExtProc(address=subject.address, message_timeout=20)
        listeners = [
            Listener(name="rr", endpoints=[endpoint]),
            Listener(name="picker", endpoints=[NOBODY, endpoint], balancer="picker", ext_proc=ext_proc),
        ]
        envoy = await stack.enter_async_context(Envoy(bootstrap(listeners, access_log=access_log)))
        for name in ("rr", "picker"):
            target = Target(address=envoy.address(name), timeout=30)
            assert not failures(await open_loop(target, [spoofed] * 3))

    assert seen == [None] * 3 + [endpoint] * 3
    line = orjson.loads(access_log.read_text().splitlines()[-1])
    assert (line["listener"], line["destination"], line["upstream"]) == ("picker", endpoint, endpoint)
    assert line["ext_proc"].startswith("rh:")


async def test_envoy_ends_with_its_context() -> None:
    async with Servers() as servers:
        async with Envoy(bootstrap([Listener(name="a", endpoints=servers.addresses)])) as envoy:
            target = Target(address=envoy.address("a"), timeout=30)
            assert await closed_loop(target, lambda _: Request(b"{}"), clients=1, duration=0.01)
        result = await open_loop(target, [Request(b"{}")])

    assert list(failures(result)) == ["ClientConnectorError"]
