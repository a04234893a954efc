"""A gateway as users have it: real Envoy, the picker as a process, two upstreams."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from bench.rig.envoy import Envoy, ExtProc, Listener, bootstrap
from bench.rig.picker import Picker
from tests.support.upstream import Upstream, upstreams
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from bench.rig.envoy import Mode
    from tests.support.upstream import Page


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway; ``url`` is where clients send."""

    url: str
    client: aiohttp.ClientSession
    picker: Picker
    envoy: Envoy
    servers: list[Upstream]

    async def series(self) -> dict[str, float]:
        """The picker's own metrics, by series as written on the page."""
        page = await self.picker.metrics()
        pairs = (line.rpartition(" ") for line in page.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, _, value in pairs}

    async def servers_busy(self, requests: int) -> None:
        """Wait until the servers have got that many requests."""

        async def served() -> bool:
            return sum(server.served for server in self.servers) >= requests

        await eventually(served)

    async def streams_closed(self) -> dict[str, float]:
        """Wait until the picker has no stream open; its metrics then."""

        async def none_open() -> bool:
            return (await self.series())["picker_streams_open"] == 0

        await eventually(none_open)
        return await self.series()


def internal_errors(series: dict[str, float]) -> float:
    """How many faults of the picker itself were caught."""
    return sum(value for name, value in series.items() if name.startswith("picker_internal_errors_total"))


def write_members(file: Path, addresses: Iterable[str]) -> None:
    """Replace an endpoints file as a careful writer does."""
    pairs = [address.rpartition(":") for address in addresses]
    entries = "".join(f"\n- {{address: {host}, port: {port}}}" for host, _, port in pairs)
    new = file.with_suffix(".new")
    new.write_text(f"endpoints:{entries or ' []'}\n")
    new.replace(file)


@asynccontextmanager
async def gateway(
    mode: Mode,
    *,
    servers: int = 2,
    tls: bool = False,
    failure_mode_allow: bool = False,
    members: Path | None = None,
    page: Page = "missing",
    **env: str,
) -> AsyncIterator[Gateway]:
    """Everything up; ``env`` are further settings of the picker, without their prefix, in lower case.

    ``members`` is a file in which the picker is told its endpoints, at first all of them, instead of in
    a list.
    """
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(upstreams(servers, page))
        addresses = [server.address for server in pool]
        settings = {f"PICKER_{name.upper()}": value for name, value in env.items()}
        transport = os.environ.get("PICKER_TRANSPORT", "auto")  # the one that all of these tests are run on
        if members is None:
            settings["PICKER_ENDPOINTS"] = ",".join(addresses)
        else:
            write_members(members, addresses)
            settings["PICKER_ENDPOINTS_FILE"] = str(members)
        picker = await stack.enter_async_context(
            Picker(
                {
                    "PICKER_TRANSPORT": transport,
                    "PICKER_SECURE_SERVING": str(tls).lower(),
                    "PICKER_DRAIN_DELAY": "0.5s",
                    **settings,
                }
            )
        )
        listener = Listener(
            name="picker",
            endpoints=addresses,
            balancer="picker",
            ext_proc=ExtProc(
                address=picker.address, mode=mode, tls=tls, failure_mode_allow=failure_mode_allow
            ),
        )
        envoy = await stack.enter_async_context(Envoy(bootstrap([listener])))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=200), auto_decompress=False)
        )
        yield Gateway(f"http://{envoy.address('picker')}", client, picker, envoy, pool)
