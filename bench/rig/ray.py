"""A local RayCluster with several Serve proxies, each on a loopback port of its own.

``python -m bench.rig.ray --nodes 3`` prints one JSON line when every proxy is healthy, obeys commands on
standard input (``kill-proxy 1``, ``stop-node 2``, …) and takes everything down at SIGTERM, SIGINT or the
end of its input. ``RayCluster`` is the same for programs.

This module does not import Ray: Ray lives in a child process (``bench.rig.raydriver``) that leads a
session of its own. Whatever Ray starts stays in that session, so that all of it can be found and killed
however the child ended; and if this process is killed, the child sees its input end and does the same.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from bench.rig import procs
from bench.rig.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

START_SECONDS = 180.0
COMMAND_SECONDS = 120.0
END_SECONDS = 10.0
LOG_TAIL_LINES = 15
ROOT = Path(__file__).resolve().parents[2]
LOOPBACK_PATCH = ROOT / "bench/rig/loopback"
REPLICA_PORTS = 200
REPLICA_DRAIN_SECONDS = 8.0
"""With direct ingress: how many ports replicas choose from, and how long one that is to stop serves on."""

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A page is otherwise up to ten seconds old; one second is the least Ray takes.
    "RAY_metrics_report_interval_ms": "1000",
    # How long a request for an adapter waits for a replica that has it before it takes any other.
    "RAY_SERVE_MULTIPLEXED_MODEL_ID_MATCHING_TIMEOUT_S": "10",
    # What keeps Ray at 127.0.0.1 on Linux too, despite the name: otherwise it takes the machine's address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class RayError(RuntimeError):
    """The cluster did not start, broke off, or could not do what it was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the driver builds: one node for each index of the port lists, the first one the head.

    ``dashboard_port`` 0: no dashboard. ``direct_ingress``: replicas have their own ports, and only the head
    has a proxy.
    """

    directory: str
    gcs_port: int
    http_ports: list[int]
    metrics_ports: list[int]
    agent_ports: list[int]
    max_ongoing: int
    max_queued: int
    dashboard_port: int = 0
    direct_ingress: bool = False

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.http_ports)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A Serve proxy: where it listens, and where its node's metrics page is, as ``host:port``."""

    address: str
    metrics_address: str


class RayCluster:
    """An async context manager around one RayCluster; nothing of it is left afterwards.

    Each node has one replica of ``bench.rig.rayapp``, which takes ``max_ongoing`` requests at once; each
    proxy queues ``max_queued`` and refuses what goes beyond. Ports not given are free ones, and a node
    started again has the same ones. Node 0 is the head and can be neither stopped nor crashed.

    ``dashboard``: the head has its dashboard, at ``dashboard_url``. ``direct_ingress``: the replicas serve
    HTTP themselves, on ports that the dashboard names; of ``proxies`` only the first one is there.
    """

    def __init__(  # noqa: PLR0913 - by keyword, and each for some test
        self,
        nodes: int = 3,
        *,
        max_ongoing: int = 8,
        max_queued: int = 8,
        http_ports: Sequence[int] = (),
        metrics_ports: Sequence[int] = (),
        dashboard: bool = False,
        direct_ingress: bool = False,
    ) -> None:
        free = iter(free_ports(3 * nodes + 3))
        http = list(http_ports) or [next(free) for _ in range(nodes)]
        metrics = list(metrics_ports) or [next(free) for _ in range(nodes)]
        agents = [next(free) for _ in range(nodes)]
        if not len(http) == len(metrics) == nodes:
            raise RayError(f"{nodes} nodes need {nodes} HTTP and {nodes} metrics ports")
        # Below /tmp, not $TMPDIR: the path of a unix socket has 107 bytes at most, and Ray's are long.
        self.directory = Path(tempfile.mkdtemp(prefix="rig-ray-", dir="/tmp"))
        self._plan = Plan(
            directory=str(self.directory),
            gcs_port=next(free),
            http_ports=http,
            metrics_ports=metrics,
            agent_ports=agents,
            max_ongoing=max_ongoing,
            max_queued=max_queued,
            dashboard_port=next(free) if dashboard else 0,
            direct_ingress=direct_ingress,
        )
        self.dashboard_url = f"http://{LOOPBACK}:{self._plan.dashboard_port}"
        first = next(free)
        self._environment = (
            {
                "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
                "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
                "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + REPLICA_PORTS),
                "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(REPLICA_DRAIN_SECONDS),
            }
            if direct_ingress
            else {}
        )
        self.proxies = tuple(
            Proxy(f"{LOOPBACK}:{port}", f"{LOOPBACK}:{page}")
            for port, page in zip(http, metrics, strict=True)
        )
        self.raylet_pids: list[int] = []
        self._driver: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            require_ray()
            await self._spawn()
            self.raylet_pids = await self._answer(START_SECONDS)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill everything and remove the cluster's files. Idempotent."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(ProcessLookupError):
                driver.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await driver.wait()
            with suppress(ProcessLookupError):
                driver.kill()
            # If it died or hung; in this thread, since it takes milliseconds and nothing may come between.
            procs.kill_session(driver.pid)
            await driver.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def kill_proxy(self, node: int) -> None:
        """Kill the process of a node's proxy; Ray starts another one at the same port later."""
        await self.command(f"kill-proxy {node}")

    async def proxy_pid(self, node: int) -> int:
        """The process id of the proxy that now listens on a node's port."""
        return int(await self.command(f"proxy-pid {node}"))

    async def kill_raylet(self, node: int) -> None:
        """Crash a node: its proxy goes on saying that it is healthy and answers 500; ``start_node`` mends."""
        await self.command(f"kill-raylet {node}")

    async def stop_node(self, node: int) -> None:
        """Stop a node: afterwards nothing listens on its ports."""
        await self.command(f"stop-node {node}")

    async def start_node(self, node: int) -> None:
        """Start a stopped or crashed node at the same ports and wait until its proxy is healthy."""
        self.raylet_pids[node] = await self.command(f"start-node {node}")

    async def scale(self, replicas: int) -> None:
        """Change the number of replicas; the proxy of a node that loses its one starts draining."""
        await self.command(f"scale {replicas}")

    async def redeploy(self) -> None:
        """Put a new release in the place of each replica, one after the other; returns when all are."""
        await self.command("redeploy 0")

    async def command(self, line: str) -> Any:  # noqa: ANN401 - each command's own value
        """Give the driver one command and wait for what it answers; RayError if it cannot be done."""
        if self._driver is None or self._driver.stdin is None:
            raise RayError("the RayCluster does not run")
        async with self._turn:
            with suppress(ConnectionError):  # the missing answer says it better
                self._driver.stdin.write(line.encode() + b"\n")
                await self._driver.stdin.drain()
            return await self._answer(COMMAND_SECONDS)

    def log_tail(self) -> str:
        """The last lines the driver wrote."""
        with suppress(FileNotFoundError):
            lines = (self.directory / "driver.log").read_text(errors="replace").splitlines()
            return "\n".join(lines[-LOG_TAIL_LINES:])
        return ""

    async def _spawn(self) -> None:
        path = [str(LOOPBACK_PATCH), str(ROOT), *os.environ.get("PYTHONPATH", "").split(":")]
        environment = os.environ | ENVIRONMENT | self._environment | {
            "PYTHONPATH": ":".join(filter(None, path)),
            # Also where Ray notes the address of "the" cluster of this machine, which this one is not.
            "RAY_TMPDIR": str(self.directory),
        }  # fmt: skip
        with (self.directory / "driver.log").open("wb") as log:
            self._driver = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.rig.raydriver", orjson.dumps(asdict(self._plan)).decode()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )

    async def _answer(self, seconds: float) -> Any:  # noqa: ANN401 - each command's own value
        if self._driver is None or self._driver.stdout is None:
            raise RayError("the RayCluster does not run")
        try:
            async with asyncio.timeout(seconds):
                line = await self._driver.stdout.readline()
        except TimeoutError:
            raise RayError(f"Ray did not answer within {seconds:g} s:\n{self.log_tail()}") from None
        if not line:
            raise RayError(f"Ray's driver ended:\n{self.log_tail()}")
        answer = orjson.loads(line)
        if not answer["ok"]:
            raise RayError(answer["error"])
        return answer["value"]


def require_ray() -> None:
    """Say what to do where the cluster cannot run at all."""
    if not sys.platform.startswith("linux"):
        raise RayError("the local RayCluster needs Linux: take the simulated servers instead")
    # This module is bench.rig.ray: `ray` is Ray's own package.
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray.serve") is None:
        raise RayError('Ray Serve is not installed: pip install "ray[serve]", or take the simulated servers')
    messages = importlib.util.find_spec("opentelemetry.proto.metrics.v1.metrics_pb2")
    if messages and messages.origin and b"scope_metrics" not in Path(messages.origin).read_bytes():
        # xds-protos brings an old copy of these modules; with it Ray's pages stay empty without a word.
        raise RayError(
            "another package has overwritten opentelemetry-proto, and Ray exports no metrics with that: "
            "pip install --force-reinstall --no-deps opentelemetry-proto"
        )


async def describe(cluster: RayCluster) -> dict[str, Any]:
    """Give what the command prints: addresses, and process ids for ``kill``."""
    nodes = [
        {
            "proxy": proxy.address,
            "metrics": proxy.metrics_address,
            "raylet_pid": cluster.raylet_pids[index],
            "proxy_pid": await cluster.proxy_pid(index),
        }
        for index, proxy in enumerate(cluster.proxies)
    ]
    return {"nodes": nodes, "directory": str(cluster.directory)}


async def serve_commands(cluster: RayCluster) -> None:
    """Obey standard input until it ends, one answer line each."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode(errors="replace"):
        if not line.strip():
            continue
        try:
            answer = {"ok": True, "value": await cluster.command(line.strip())}
        except RayError as error:
            answer = {"ok": False, "error": str(error)}
        print(orjson.dumps(answer).decode(), flush=True)


async def run(options: argparse.Namespace) -> None:
    """Run a cluster until standard input ends."""
    cluster = RayCluster(
        options.nodes,
        max_ongoing=options.max_ongoing,
        max_queued=options.max_queued,
        http_ports=consecutive(options.http_port, options.nodes),
        metrics_ports=consecutive(options.metrics_port, options.nodes),
    )
    async with cluster:
        print(orjson.dumps(await describe(cluster)).decode(), flush=True)
        await serve_commands(cluster)


def consecutive(first: int | None, count: int) -> list[int]:
    """The ports from ``first`` on, or none."""
    return [] if first is None else list(range(first, first + count))


def cancel_on_signals(cancel: Callable[[], object]) -> None:
    """Let SIGTERM and SIGINT end the running task, so that its context managers clean up."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, cancel)


async def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bench.rig.ray", description=__doc__.split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--max-ongoing", type=int, default=8, help="requests a replica takes at once")
    parser.add_argument("--max-queued", type=int, default=8, help="requests a proxy queues")
    parser.add_argument("--http-port", type=int, help="of node 0, the others follow; free ones by default")
    parser.add_argument("--metrics-port", type=int, help="likewise")
    task = asyncio.ensure_future(run(parser.parse_args()))
    cancel_on_signals(task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass
    except RayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
