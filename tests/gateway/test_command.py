"""``serve-picker gateway`` with a real Envoy: it serves, outlives its children, and ends in order."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import orjson
import pytest

from bench.rig.load import Request, Target, closed_loop, failures
from bench.rig.ports import free_ports
from picker.serving.tls import self_signed
from tests.envoy.conftest import write_members
from tests.gateway.conftest import command
from tests.support.upstream import lines, upstreams
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rig.load import Result
    from tests.gateway.conftest import Command

pytestmark = pytest.mark.envoy


async def load(gateway: Command, seconds: float, clients: int = 4) -> list[Result]:
    """Some clients that send one small request after the other."""
    return await closed_loop(
        Target(address=gateway.address),
        lambda _: Request(b'{"model": "m", "prompt": "hello"}', path="/v1/completions"),
        clients=clients,
        duration=seconds,
    )


async def picked(gateway: Command) -> float:
    """How many decisions the present picker has made; -1 if it does not answer."""
    try:
        async with gateway.client.get(f"{gateway.metrics_url}/metrics") as response:
            page = await response.text()
    except aiohttp.ClientError:
        return -1.0
    series = 'picker_decisions_total{outcome="picked"} '
    return float(page.partition(series)[2].partition("\n")[0])


async def test_requests_are_picked_and_logged_with_their_endpoint(tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        results = await load(gateway, 1.0)
        assert results
        assert failures(results) == {}
        assert await picked(gateway) >= len(results)

        async def logged() -> bool:
            return gateway.access_log.exists() and len(gateway.access_log.read_bytes().splitlines()) > 1

        await eventually(logged)
        entry = orjson.loads(gateway.access_log.read_bytes().splitlines()[-1])
        assert entry["endpoint"] in {server.address for server in gateway.servers}
        assert entry["picked"].startswith(entry["endpoint"])


async def test_a_client_cannot_choose(tmp_path: Path) -> None:
    async with upstreams(1) as outsiders, command(tmp_path) as gateway:
        headers = {"x-gateway-destination-endpoint": outsiders[0].address}
        for _ in range(20):
            async with gateway.client.post(f"{gateway.url}/any", headers=headers) as response:
                assert response.status == 200
        assert outsiders[0].served == 0


async def test_websockets_and_two_thousand_streams_pass(tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        async with gateway.client.ws_connect(f"{gateway.url}/ws") as socket:
            await socket.send_str("hello")
            assert await socket.receive_str(timeout=10) == "hello"

        async def stream(number: int) -> bytes:
            await asyncio.sleep(number / 250)  # all at once would ask the servers' accept queue, not us
            async with gateway.client.post(f"{gateway.url}/lines?count=12&interval=1") as response:
                return await response.read()

        answers = await asyncio.gather(*(stream(number) for number in range(2_000)))
        assert set(answers) == {lines(12)}


async def test_tls(tmp_path: Path) -> None:
    chain, key = self_signed()
    (tmp_path / "tls.crt").write_bytes(chain)
    (tmp_path / "tls.key").write_bytes(key)
    flags = ("--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key"))
    async with command(tmp_path, *flags, scheme="https") as gateway:
        async with gateway.client.post(f"{gateway.url}/any", data=b"x") as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await gateway.client.post(f"http://{gateway.address}/any")


async def test_a_dead_endpoint_costs_no_request(tmp_path: Path) -> None:
    async with command(tmp_path, servers=3) as gateway:
        await gateway.servers[0].stop()
        assert failures(await load(gateway, 2.0)) == {}


async def test_sigterm_under_load_loses_no_request(tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        working = asyncio.create_task(load(gateway, 4.0))
        async with gateway.client.post(f"{gateway.url}/lines?count=40&interval=0.1") as response:
            gateway.child.terminate()
            assert await response.read() == lines(40)
        assert await gateway.child.wait(20) == 0
        results = await working
        refused = failures(results)
        # Once the port is closed new connections are refused, which no gateway could answer.
        assert set(refused) <= {"ClientConnectorError"}
        assert len(results) > sum(refused.values())


async def test_a_killed_picker_costs_no_request_and_comes_back(tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        working = asyncio.create_task(load(gateway, 6.0))
        await asyncio.sleep(1.0)
        before = gateway.process("picker")
        os.kill(before, signal.SIGKILL)

        async def is_back() -> bool:
            return gateway.process("picker") not in (0, before) and await picked(gateway) > 0

        await eventually(is_back, within=60.0)
        assert failures(await working) == {}


async def test_a_frozen_picker_is_passed_over_and_replaced(tmp_path: Path) -> None:
    async with command(tmp_path, watchdog="2s") as gateway:
        before = gateway.process("picker")
        os.kill(before, signal.SIGSTOP)
        assert failures(await load(gateway, 4.0)) == {}

        async def is_replaced() -> bool:
            return gateway.process("picker") not in (0, before) and await gateway.status() == 200

        await eventually(is_replaced, within=60.0)
        served = sum(server.served for server in gateway.servers)
        assert await gateway.status() == 200
        assert sum(server.served for server in gateway.servers) == served + 1


async def test_envoy_is_started_again(tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        before = gateway.process("envoy")
        os.kill(before, signal.SIGKILL)

        async def serves_again() -> bool:
            return gateway.process("envoy") not in (0, before) and await gateway.status() == 200

        await eventually(serves_again, within=60.0)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short, as Envoy's sockets need it; pytest's are not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def test_a_run_folder_that_was_tidied_up_costs_nothing(tmp_path: Path, short_folder: Path) -> None:
    async with command(tmp_path, TMPDIR=str(short_folder)) as gateway:
        for run_folder in short_folder.glob("serve-picker-*"):  # noqa: ASYNC240 - of one member
            shutil.rmtree(run_folder)
        before = gateway.process("envoy")
        os.kill(before, signal.SIGKILL)

        async def serves_again() -> bool:
            return gateway.process("envoy") not in (0, before) and await gateway.status() == 200

        await eventually(serves_again, within=60.0)


async def test_endpoints_come_and_go_under_load_and_no_request_is_lost(tmp_path: Path) -> None:
    members = tmp_path / "members.yaml"
    async with upstreams(4) as pool:
        addresses = [server.address for server in pool]
        write_members(members, addresses[:2])
        async with command(tmp_path, members=members) as gateway:
            working = asyncio.create_task(load(gateway, 8.0))
            for present in (addresses, addresses[1:], addresses[2:], addresses[:3], addresses):
                write_members(members, present)
                await asyncio.sleep(1.5)
            assert failures(await working) == {}
            assert all(server.served > 0 for server in pool)


async def test_nothing_is_left_when_the_command_itself_is_killed(tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        children = [gateway.process("envoy"), gateway.process("picker")]
        os.kill(gateway.child.pid, signal.SIGKILL)

        async def gone() -> bool:
            return not any(_is_alive(pid) for pid in children)

        await eventually(gone, within=60.0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--endpoints", "nonsense"), "--endpoints is 'nonsense'"),
        ((), "no endpoints"),
        (("--endpoints", "127.0.0.1:1", "--tls-cert", "{here}"), "--tls-key"),
        (("--endpoints", "127.0.0.1:1", "--envoy", "/nowhere/envoy"), "--envoy"),
        (("--endpoints", "127.0.0.1:1", "--listen", "nowhere"), "--listen"),
        (("--endpoints", "127.0.0.1:1", "--listen", "localhost:8080"), "no IP address"),
        (("--ray", "head:8265"), "--ray is 'head:8265'"),
        (("--endpoints", "127.0.0.1:1", "--listen", "127.0.0.1:{taken}"), "stop what listens there"),
    ],
)
async def test_what_is_wrong_is_told_in_one_line(flags: tuple[str, ...], said: str) -> None:
    async with upstreams(1) as pool:
        places = {"here": __file__, "taken": pool[0].address.rpartition(":")[2]}
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "picker", "gateway", *(flag.format(**places) for flag in flags)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "Traceback" not in ended.stderr


async def test_a_second_gateway_is_told_which_ports_it_needs(tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        port = gateway.metrics_url.rpartition(":")[2]
        ended = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                "-m",
                "picker",
                "gateway",
                "--endpoints",
                "127.0.0.1:1",
                "--listen",
                f"127.0.0.1:{free_ports(1)[0]}",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PICKER_METRICS_PORT": port},
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        f"serve-picker: PICKER_METRICS_PORT 127.0.0.1:{port}: Address already in use"
    )
    assert len(ended.stderr.strip().splitlines()) == 1


async def test_it_can_be_ended_while_it_waits_for_a_ray_head() -> None:
    metrics, admin, listen, nobody = free_ports(4)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "picker", "gateway", "--ray", f"http://127.0.0.1:{nobody}"),
        *("--listen", f"127.0.0.1:{listen}"),
        env={**os.environ, "PICKER_METRICS_PORT": str(metrics), "PICKER_ADMIN_PORT": str(admin)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while b"Ray head" not in await process.stderr.readline():
            pass
        process.terminate()
        assert await process.wait() == 0


async def test_output_that_goes_to_a_file_has_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    async with command(tmp_path, "--access-log", "-") as gateway:
        assert failures(await load(gateway, 1.0)) == {}

        async def logged() -> bool:
            return log.read_text().count('"picked"') > 10

        await eventually(logged)
    for line in log.read_text().splitlines():
        assert isinstance(orjson.loads(line), dict)


def test_the_configuration_can_be_read_before() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "picker", "gateway", "--endpoints", "127.0.0.1:1", "--print-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "envoy.filters.http.ext_proc" in ended.stdout
