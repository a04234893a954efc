"""The yardstick: the least that one writes to ask many servers for a few numbers.

One task a server and a plain aiohttp session: get the page, look for the names, sleep. It has none of
what the picker's scraping has: no bounds, no deadlines, nothing that becomes of the numbers, nobody told.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

NAMES = {
    "small": (b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc"),
    "vllm": (b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc"),
    "ray": (
        b"ray_serve_num_ongoing_requests_at_replicas",
        b"ray_serve_deployment_queued_queries",
        b"ray_serve_replica_processing_queries",
    ),
}


@asynccontextmanager
async def plain_loop(kind: str, addresses: Sequence[str], interval: float) -> AsyncIterator[None]:
    """Ask every server each ``interval`` seconds, evenly spread, as long as the context is open."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(_ask(session, kind, address, interval)) for address in addresses]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(session: aiohttp.ClientSession, kind: str, address: str, interval: float) -> None:
    await asyncio.sleep(random.random() * interval)
    while True:
        async with session.get(f"http://{address}/metrics") as response:
            page = await response.read()
        for name in NAMES[kind]:
            sum_of(page, name)
        await asyncio.sleep(interval)


def sum_of(page: bytes, name: bytes) -> float:
    """The sum of a family's samples, found by byte search."""
    total, needle = 0.0, b"\n" + name + b"{"
    start = page.find(needle)
    while start >= 0:
        end = page.index(b"\n", start + 1)
        total += float(page[page.rindex(b" ", start, end) : end])
        start = page.find(needle, end)
    return total
