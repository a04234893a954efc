"""A RayCluster whose nodes have addresses of their own: each in a network namespace, as pods are.

``unshare --net python -m tests.ray.namespaces DIRECTORY`` needs root. It gives the network namespace it is in
a bridge and makes one namespace more for each node; they end with their processes, and these with this one.
What it sees it prints as one line of JSON.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import orjson

from bench.rig import procs, rayapp
from bench.rig.ray import ENVIRONMENT, ROOT
from picker.endpoints.ray_head import Pace, RayHead, RayHeadSource
from tests.ray.door import door

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = 3
NETWORK = "10.77.0"
START_SECONDS = 120
PACE = Pace(interval=1.0)
DRAIN_SECONDS = 8.0
"""That a proxy that is drained serves on, at least; by default 30, and the head is asked every 5."""


def run(*command: str) -> None:
    """Run a command to its end. Raises CalledProcessError."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def ip_of(node: int) -> str:
    return f"{NETWORK}.{node + 1}"


@contextmanager
def namespace(node: int) -> Iterator[list[str]]:
    """A network namespace with an interface on the bridge; how to begin a command that is to run in it."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        link, own = Path(f"/proc/{holder.pid}/ns/net"), Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + START_SECONDS
        while link.readlink() == own and time.monotonic() < deadline:
            time.sleep(0.01)
        inside = ["nsenter", "--target", str(holder.pid), "--net"]
        peer = ["peer", "name", "eth0", "netns", str(holder.pid)]
        run("ip", "link", "add", f"node{node}", "type", "veth", *peer)
        run("ip", "link", "set", f"node{node}", "master", "bridge", "up")
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "ip", "address", "add", f"{ip_of(node)}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        yield inside
    finally:
        holder.kill()
        holder.wait()


def start_node(node: int, inside: list[str], directory: Path, log: IO[bytes]) -> None:
    """Start Ray in a node's namespace, listening on all of that namespace's addresses."""
    role = (
        ["--head", "--port=6379", "--dashboard-host=0.0.0.0", "--dashboard-port=8265"]
        if node == 0
        else [f"--address={ip_of(0)}:6379"]
    )
    several = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}  # nothing has to keep Ray at 127.0.0.1 here
    environment = os.environ | ENVIRONMENT | several | {
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": str(directory),
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": str(DRAIN_SECONDS),
        rayapp.NODE_VARIABLE: str(node),
    }  # fmt: skip
    ray = [str(Path(sys.executable).with_name("ray")), "start", *role, f"--node-ip-address={ip_of(node)}"]
    limits = ["--num-cpus=1", "--object-store-memory=100000000", "--metrics-export-port=8080"]
    subprocess.run(
        [*inside, *ray, *limits, "--disable-usage-stats"],
        check=True, env=environment, stdout=log, stderr=log, timeout=START_SECONDS,
    )  # fmt: skip


def deploy(replicas: int) -> None:
    """In the head's namespace: run the application on so many nodes."""
    import ray  # noqa: PLC0415 - only here
    from ray import serve  # noqa: PLC0415

    ray.init(address=f"{ip_of(0)}:6379", namespace="rig", log_to_driver=False)
    serve.start(proxy_location="EveryNode", http_options={"host": "0.0.0.0", "port": 8000})
    serve.run(rayapp.build(replicas, 100, 1000), name="default", route_prefix="/")


async def scale(replicas: int, inside: list[str], log: IO[bytes]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*inside, sys.executable, "-m", "tests.ray.namespaces", "deploy", str(replicas)),
        stdout=log,
        stderr=log,
    )
    async with asyncio.timeout(START_SECONDS):
        if await process.wait():
            raise RuntimeError(f"the application was not deployed to {replicas} nodes")


async def play(head: list[str], log: IO[bytes]) -> dict[str, object]:
    """Three proxies; then one node alone has a replica: its proxy stays, and the head's always does."""
    await scale(NODES, head, log)
    source = RayHeadSource(RayHead(f"http://{ip_of(0)}:8265", pace=PACE))
    async with door(source, members=NODES) as opened:
        found = opened.members
        served_before = await opened.served_now()
        await scale(1, head, log)
        await opened.until(lambda: len(opened.members) < NODES)
        served_after = await opened.served_now()
        left = set(opened.members)
        await asyncio.sleep(DRAIN_SECONDS + 5)  # then the proxies without replicas are gone
        return {
            "found": sorted(found),
            "metrics": sorted(member.metrics_address for member in found.values()),
            "served_before": sorted(served_before),
            "left": sorted(left),
            "served_after": sorted(served_after),
            "failures": opened.failures,
            "requests": len(opened.fates),
        }


def end_all() -> None:
    """End whatever was started here, and by those: orphans are ours."""
    deadline = time.monotonic() + START_SECONDS
    while (left := procs.descendants(os.getpid())) and time.monotonic() < deadline:
        procs.kill(left)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(0.1)


def main(directory: Path) -> None:
    """Build the network and the cluster, play, and end all of it."""
    procs.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "address", "add", f"{NETWORK}.254/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")
        with ExitStack() as stack, (directory / "ray.log").open("ab") as log:
            nodes = [stack.enter_context(namespace(node)) for node in range(NODES)]
            for node, inside in enumerate(nodes):
                start_node(node, inside, directory, log)
            seen = asyncio.run(play(nodes[0], log))
        sys.stdout.write(orjson.dumps(seen).decode() + "\n")
    finally:
        end_all()


if __name__ == "__main__":
    if sys.argv[1] == "deploy":
        deploy(int(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
