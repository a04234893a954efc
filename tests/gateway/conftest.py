"""The gateway command before two servers that tell what they received."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from bench.rig.gateway import Gateway
from tests.support.upstream import upstreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bench.rig.child import Child
    from tests.support.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Command:
    """A running ``serve-picker gateway``; ``url`` is where clients send."""

    gateway: Gateway
    client: aiohttp.ClientSession
    servers: list[Upstream]
    access_log: Path

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def address(self) -> str:
        return self.gateway.address

    @property
    def metrics_url(self) -> str:
        return self.gateway.metrics_url

    @property
    def child(self) -> Child:
        return self.gateway.child

    def process(self, name: str) -> int:
        return self.gateway.process(name)

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
    """Everything up; ``env`` are settings of the picker without their prefix in lower case, or variables."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(upstreams(servers))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=100),
                connector=aiohttp.TCPConnector(limit=0, ssl=False),
            )
        )
        who = (
            ["--endpoints", ",".join(server.address for server in pool)]
            if members is None
            else ["--endpoints-file", str(members)]
        )
        access_log = directory / "access.log"
        gateway = await stack.enter_async_context(
            Gateway(
                ["--access-log", str(access_log), *who, *flags],
                {name if name.isupper() else f"PICKER_{name.upper()}": value for name, value in env.items()},
                scheme=scheme,
                directory=directory,
            )
        )
        yield Command(gateway, client, pool, access_log)
