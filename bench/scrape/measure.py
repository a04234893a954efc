"""One run: what a page costs the picker's scraping and the plain loop, and what idle pickers take."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.rig.cpu import cpu_seconds
from bench.rig.picker import Picker
from bench.scrape.pages import PageServers
from bench.scrape.plain import plain_loop
from picker.endpoints.endpoint import Endpoint
from picker.metrics.scraper import ScrapeOptions, Scraper
from picker.observe.prometheus import Metrics
from picker.routing.router import Router
from scorer.fleet import Fleet
from scorer.profile import built_in_profile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from bench.scrape.pages import Kind

Who = Literal["picker", "plain"]
MICRO = 1e6
FIRST_ATTEMPTS_SECONDS = 30.0
_TELLING_REST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is run, ``runs`` times.

    ``duration`` in seconds of each measurement. Pages are asked of ``endpoints`` servers each ``interval``
    seconds (of Ray's each second: the picker never asks more often). Idle pickers have each of ``idle``
    many endpoints and settle for ``settle`` seconds before they are measured.
    """

    kinds: Sequence[Kind]
    idle: Sequence[int]
    runs: int = 3
    duration: float = 2.0
    endpoints: int = 100
    interval: float = 0.2
    settle: float = 8.0

    def interval_of(self, kind: Kind) -> float:
        """Seconds between two pages of a server."""
        return max(self.interval, 1.0) if kind == "ray" else self.interval

    @property
    def expected_seconds(self) -> float:
        """About how long it takes."""
        pages = self.runs * len(self.kinds) * 2 * (self.duration + 1.0)
        idle = len(self.kinds) * len(self.idle) * (self.settle + _TELLING_REST * self.duration + 3.0)
        return pages + idle


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCost:
    """Pages asked for at a steady pace: CPU of the asking process, and of the servers', in µs a page."""

    who: Who
    kind: Kind
    run: int
    endpoints: int
    pages_per_second: float
    us_per_page: float
    server_us_per_page: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleShare:
    """A whole picker as it is by default, before servers that rest: its share of a core."""

    kind: Kind
    endpoints: int
    pages_per_second: float
    core: float


async def page_costs(plan: Plan, run: int, progress: Callable[[str], None]) -> list[PageCost]:
    """Both ways for each kind of page; which one goes first changes with every run."""
    costs: list[PageCost] = []
    ways: list[Who] = ["picker", "plain"]
    for kind in plan.kinds:
        async with PageServers(kind, plan.endpoints, renewed=0.0) as servers:
            for who in ways[run % 2 :] + ways[: run % 2]:
                progress(f"run {run + 1} of {plan.runs}: {who}, {kind} pages")
                costs.append(await _page_cost(plan, run, who, servers))
    return costs


async def _page_cost(plan: Plan, run: int, who: Who, servers: PageServers) -> PageCost:
    interval = plan.interval_of(servers.kind)
    asking: AbstractAsyncContextManager[None] = (
        scraping(servers.addresses, interval)
        if who == "picker"
        else plain_loop(servers.kind, servers.addresses, interval)
    )
    async with asking:
        await asyncio.sleep(2 * interval)
        pages, theirs = await servers.pages(), cpu_seconds(servers.pid)
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(plan.duration)
        used = time.process_time() - used
        took = time.perf_counter() - began
        pages, theirs = await servers.pages() - pages, cpu_seconds(servers.pid) - theirs
    return PageCost(
        who=who,
        kind=servers.kind,
        run=run,
        endpoints=plan.endpoints,
        pages_per_second=pages / took,
        us_per_page=used / pages * MICRO,
        server_us_per_page=theirs / pages * MICRO,
    )


@asynccontextmanager
async def scraping(addresses: Sequence[str], interval: float) -> AsyncIterator[None]:
    """The picker's scraping with all that hears of it, without rests, in this process."""
    loop = asyncio.get_running_loop()
    fleet = Fleet()
    scraper = Scraper(
        fleet,
        ScrapeOptions(interval=interval, idle_interval=interval),
        on_page=Router(fleet, built_in_profile(), random.Random(1)).page_read,
        on_scrape=Metrics(fleet, loop.time).scraped,
        random=random.Random(2),
        clock=loop.time,
    )
    for address in addresses:
        scraper.watch(fleet.add(address), Endpoint(address, address))
    task = asyncio.create_task(scraper.run())
    try:
        await scraper.first_attempts(FIRST_ATTEMPTS_SECONDS)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def idle_shares(plan: Plan, progress: Callable[[str], None]) -> list[IdleShare]:
    """A picker process for each kind of page and number of endpoints."""
    shares: list[IdleShare] = []
    for kind in plan.kinds:
        for count in plan.idle:
            progress(f"an idle picker, {count} endpoints, {kind} pages")
            async with PageServers(kind, count) as servers:
                environment = {
                    "PICKER_ENDPOINTS": ",".join(servers.addresses),
                    "PICKER_LOG_LEVEL": "warning",
                }
                async with Picker(environment) as picker:
                    shares.append(await idle_share(plan, servers, picker.pid))
    return shares


async def idle_share(plan: Plan, servers: PageServers, pid: int) -> IdleShare:
    """What the process ``pid`` takes, whose endpoints the servers are, once it has settled."""
    await asyncio.sleep(plan.settle)
    began, pages, used = time.perf_counter(), await servers.pages(), cpu_seconds(pid)
    await asyncio.sleep(_TELLING_REST * plan.duration)
    used = cpu_seconds(pid) - used
    took = time.perf_counter() - began
    return IdleShare(
        kind=servers.kind,
        endpoints=len(servers.addresses),
        pages_per_second=(await servers.pages() - pages) / took,
        core=used / took,
    )
