"""What the demo plays: who sends what to which proxy, and how much the cluster could take."""

from __future__ import annotations

import asyncio
import random
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import aiohttp
import orjson

from bench.rig.load import Request, poisson_arrivals

if TYPE_CHECKING:
    from types import TracebackType

PROXIES = 3
SLOTS = 8
"""Requests that a replica takes at once (``max_ongoing_requests``); one replica a proxy."""
QUEUE = 16
"""Requests that a proxy lets wait (``max_queued_requests``); it refuses those beyond."""

BUSY_PROXY = 1
BATCH_CLIENTS = SLOTS + QUEUE + 8
"""Enough to fill the slots of the one replica that has their adapter, to fill a queue, and to be refused."""
BATCH_SECONDS = 0.7
BATCH_PAUSE = 0.25
"""Seconds a refused batch client waits, on average."""

RATE = 12.0
"""Interactive requests a second."""
MEAN_SECONDS = 0.2
IN_TIME = 1.0
"""Seconds within which an answer is of use to whoever waits for it."""

CHAT = "/v1/chat/completions"
ADAPTER_HEADER = "serve-multiplexed-model-id"
# Those of bench.rig.rayapp, which cannot be imported without Ray.
CHAT_ADAPTER = "chat"
BATCH_ADAPTER = "batch"


def interactive(seconds: float, seed: int) -> list[Request]:
    """The requests of one run: the same seed gives the same arrivals, kinds and sizes."""
    rng = random.Random(seed)
    return [_request(at, rng) for at in poisson_arrivals(RATE, seconds, rng)]


def _request(at: float, rng: random.Random) -> Request:
    kind = rng.choices(("short", "long", "stream"), weights=(70, 15, 15))[0]
    if kind == "short":
        work = {"sleep": rng.uniform(0.05, 0.2)}
    elif kind == "long":
        work = {"sleep": rng.uniform(0.3, 0.5)}
    else:
        work = {"stream": True, "sleep": 0.1, "chunks": rng.randint(3, 6), "interval": 0.05}
    body = chat(f"{kind} {rng.getrandbits(64):x}", **work)
    return Request(at=at, path=CHAT, body=body, headers={ADAPTER_HEADER: CHAT_ADAPTER}, kind=kind)


def chat(prompt: str, **work: float) -> bytes:
    """The body of a chat request that takes as long as ``work`` says."""
    return orjson.dumps({"model": "demo", "messages": [{"role": "user", "content": prompt}], **work})


class BatchJob:
    """An async context manager in which other clients keep one proxy beyond its queue bound.

    They do not come through the gateway: no balancer sees their requests, only the proxy's own metrics do.
    """

    def __init__(self, proxy: str) -> None:
        self._url = f"http://{proxy}{CHAT}"
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(BATCH_CLIENTS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _client(self, number: int) -> None:
        rng = random.Random(number)
        body = chat("batch", sleep=BATCH_SECONDS)
        headers = {"Content-Type": "application/json", ADAPTER_HEADER: BATCH_ADAPTER}
        # Not all at once at the start, or they would end together ever after.
        await asyncio.sleep(rng.uniform(0, BATCH_SECONDS))
        while True:
            if not await self._accepted(body, headers):
                await asyncio.sleep(BATCH_PAUSE * rng.uniform(0.5, 1.5))

    async def _accepted(self, body: bytes, headers: dict[str, str]) -> bool:
        try:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                await response.read()
                return response.status == HTTPStatus.OK
        except (aiohttp.ClientError, TimeoutError):
            return False


def description(backend: str, seconds: float, seed: int) -> str:
    """Say what is compared, for the head of the output."""
    slots = PROXIES * SLOTS
    share = RATE * MEAN_SECONDS / slots
    if backend == "ray":
        servers = f"One RayCluster: {PROXIES} nodes, each with a Serve proxy and a replica of {SLOTS} slots"
        batch = "all want an adapter that only one replica has loaded: its slots are taken"
    else:
        servers = f"{PROXIES} simulated servers with {SLOTS} slots each"
        batch = "take that server's slots"
    return (
        f"{servers}; each proxy queues {QUEUE} requests at most and refuses more with 503. "
        f"A batch job of {BATCH_CLIENTS} clients talks straight to proxy {BUSY_PROXY + 1}, past Envoy; they "
        f"{batch} and the queue of proxy {BUSY_PROXY + 1} is full most of the time. Through Envoy come "
        f"{RATE:g} chat requests a second, short, long and streamed; they need {share:.0%} of all slots, and "
        f"{1 - SLOTS / slots:.0%} are free. Each balancer gets the same requests at the same times for "
        f"{seconds:g} s (seed {seed}), then all once more in reverse order. A failed request counts as "
        f"infinitely late."
    )
