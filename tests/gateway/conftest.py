"""The gateway command as users run it: one process with Envoy and the picker as its children."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from bench.rig.child import Child
from bench.rig.ports import free_ports
from bench.rig.procs import descendants
from tests.support.upstream import upstreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Command:
    """A running ``serve-picker gateway``; ``address`` is where clients send."""

    address: str
    metrics_url: str
    child: Child
    client: aiohttp.ClientSession
    servers: list[Upstream]
    access_log: Path
    url: str

    def process(self, name: str) -> int:
        """The process id of its child ``envoy`` or ``picker``; 0 if there is none at the moment."""
        for pid in descendants(self.child.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            is_envoy = words[0].endswith(b"/envoy")
            if is_envoy == (name == "envoy"):
                return pid
        return 0

    async def status(self, path: str = "/any") -> int:
        """Send one request; 0 if there was no answer."""
        try:
            async with self.client.post(self.url + path, data=b"{}") as response:
                await response.read()
                return response.status
        except aiohttp.ClientError:
            return 0


@asynccontextmanager
async def command(
    directory: Path,
    *flags: str,
    servers: int = 2,
    members: Path | None = None,
    scheme: str = "http",
    **env: str,
) -> AsyncIterator[Command]:
    """Everything up; ``env`` are settings of the picker, without their prefix, in lower case."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(upstreams(servers))
        port, metrics = free_ports(2)
        address = f"127.0.0.1:{port}"
        metrics_url = f"http://127.0.0.1:{metrics}"
        client = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=100), connector=aiohttp.TCPConnector(limit=0, ssl=False)
            )
        )

        async def ready() -> bool:
            try:
                async with client.get(f"{scheme}://{address}/-/probe") as response:
                    return response.status < 500
            except aiohttp.ClientError:
                return False

        who = (
            ["--endpoints", ",".join(server.address for server in pool)]
            if members is None
            else ["--endpoints-file", str(members)]
        )
        access_log = directory / "access.log"
        doors = ["--access-log", str(access_log), "--listen", address]
        settings = {"metrics_port": str(metrics), "drain_delay": "1s", **env}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PICKER_")}
        child = await stack.enter_async_context(
            Child(
                "the gateway",
                [sys.executable, "-m", "picker", "gateway", *doors, *who, *flags],
                ready=ready,
                log_path=directory / "gateway.log",
                env={**inherited, **{f"PICKER_{name.upper()}": value for name, value in settings.items()}},
                grace=20.0,
            )
        )
        yield Command(address, metrics_url, child, client, pool, access_log, f"{scheme}://{address}")
