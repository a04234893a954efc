"""What the demo plays on: servers, the gateway command, and an Envoy with a door for each other balancer."""

from __future__ import annotations

import socket
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import yaml

from bench.demo import scenario
from bench.rig.envoy import Envoy, Listener, bootstrap
from bench.rig.gateway import Gateway
from bench.rig.ports import LOOPBACK
from bench.rig.ray import Proxy, RayCluster
from bench.rig.servers import SERVED_BY, Servers
from picker.extproc.messages import SERVED_ECHO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from picker.gateway.envoy_config import Balancer

Backend = Literal["ray", "sim"]
BALANCERS: tuple[Balancer, ...] = ("round_robin", "least_request", "picker")
COMPARED: tuple[Balancer, ...] = ("round_robin", "least_request")
"""Envoy's own."""
SERVED_HEADERS: dict[Balancer, str] = {"picker": SERVED_ECHO, **dict.fromkeys(COMPARED, SERVED_BY)}
"""In which header of the answer each door tells who served."""
DOORS: tuple[Balancer, ...] = ("picker", *COMPARED)
"""The balancers at the first port and its neighbours."""


class StageError(RuntimeError):
    """The demo cannot start here; the text says why and what to do."""


class Say(Protocol):
    """Tells the user what is going on."""

    def __call__(self, text: str) -> None:
        """Take one line."""


@dataclass(frozen=True, slots=True)
class Stage:
    """All that runs: the proxies in order, and where each balancer listens."""

    proxies: Sequence[Proxy]
    doors: dict[Balancer, str]
    picker_metrics: str
    cluster: RayCluster | None


@asynccontextmanager
async def stage(backend: Backend, port: int, say: Say) -> AsyncIterator[Stage]:
    """Start everything and take it down at the end, the servers last."""
    for offset in range(len(DOORS)):
        require_free(port + offset)
    with tempfile.TemporaryDirectory(prefix="picker-demo-") as name:
        directory = Path(name)
        say("starting Ray Serve, which takes 10 to 40 s" if backend == "ray" else "starting the servers")
        async with _servers(backend, directory) as (proxies, cluster):
            say("starting the gateway command, and an Envoy to compare with")
            endpoints = directory / "endpoints.yaml"
            endpoints.write_text(yaml.safe_dump(endpoints_file(proxies)))
            async with (
                Gateway(
                    ["--endpoints-file", str(endpoints), "--access-log", str(directory / "access.log")],
                    {"PICKER_ECHO_SERVED": "true"},
                    address=f"{LOOPBACK}:{port}",
                    directory=directory,
                ) as gateway,
                Envoy(_bootstrap(proxies, port + 1), directory=directory) as envoy,
            ):
                doors = {balancer: envoy.address(balancer) for balancer in COMPARED}
                doors["picker"] = gateway.address
                yield Stage(proxies, doors, f"{gateway.metrics_url}/metrics", cluster)


def endpoints_file(proxies: Sequence[Proxy]) -> dict[str, Any]:
    """The content of the file the picker reads its endpoints from."""
    endpoints = []
    for number, proxy in enumerate(proxies, 1):
        address, _, port = proxy.address.rpartition(":")
        endpoints.append(
            {
                "name": f"proxy-{number}",
                "address": address,
                "port": int(port),
                "metricsHost": proxy.metrics_address,
            }
        )
    return {"endpoints": endpoints}


def require_free(port: int) -> None:
    """Say at once, and not after Ray's start, that a port is taken."""
    with socket.socket() as probe:
        # As Envoy does: what lingers after the last demo does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise StageError(
                f"port {port} of {LOOPBACK} is taken: stop what listens there, or choose another "
                f"first port with --port (PORT={port + 1000} make demo)"
            ) from error


@asynccontextmanager
async def _servers(
    backend: Backend, directory: Path
) -> AsyncIterator[tuple[Sequence[Proxy], RayCluster | None]]:
    if backend == "ray":
        async with RayCluster(
            scenario.PROXIES, max_ongoing=scenario.SLOTS, max_queued=scenario.QUEUE
        ) as cluster:
            yield cluster.proxies, cluster
    else:
        async with Servers(
            scenario.PROXIES, max_ongoing=scenario.SLOTS, max_queued=scenario.QUEUE, directory=directory
        ) as servers:
            yield [Proxy(address, address) for address in servers.addresses], None


def _bootstrap(proxies: Sequence[Proxy], port: int) -> dict[str, Any]:
    listeners = [
        Listener(
            name=balancer,
            endpoints=[proxy.address for proxy in proxies],
            balancer=balancer,
            port=port + offset,
            served_by=SERVED_BY,
        )
        for offset, balancer in enumerate(COMPARED)
    ]
    return bootstrap(listeners)
