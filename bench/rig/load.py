"""A load generator: open loop (given arrival times) and closed loop (a number of clients).

Latency counts from the arrival time of a request, not from when the generator got round to sending
it, so that a stalled system cannot hide by slowing the generator down. A failed request counts as
infinitely late: a balancer that fails fast must not look quick.
"""

from __future__ import annotations

import asyncio
import io
import math
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp

from bench.rig.servers import SERVED_BY

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

DEFAULT_TIMEOUT = 60.0
MAX_IN_FLIGHT = 2_000
LARGE_BODY = 256 * 1024
OVERLOADED = "the load generator is at its limit of requests in flight"

# Not the loop's own clock: uvloop's has a resolution of 1 ms.
_clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send ``at`` seconds after the start. ``kind`` is for the report only."""

    body: bytes = b""
    at: float = 0.0
    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""


@dataclass(slots=True)
class Result:
    """The fate of one request. Times in seconds; ``status`` is 0 and ``error`` says why if none came.

    ``first_byte`` and ``latency`` run from the arrival time to the first and last byte of the body.
    """

    kind: str
    start: float
    status: int = 0
    first_byte: float = math.inf
    latency: float = math.inf
    size: int = 0
    served: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """True if the whole of a good answer came."""
        return not self.error and HTTPStatus.OK <= self.status < HTTPStatus.BAD_REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and how to send. ``served_by`` names the response header that tells which server it was."""

    address: str
    timeout: float = DEFAULT_TIMEOUT
    max_in_flight: int = MAX_IN_FLIGHT
    served_by: str = SERVED_BY


def poisson_arrivals(rate: float, duration: float, rng: random.Random) -> list[float]:
    """Arrival times of independent clients: ``rate`` a second on average, for ``duration`` seconds."""
    arrivals: list[float] = []
    now = rng.expovariate(rate)
    while now < duration:
        arrivals.append(now)
        now += rng.expovariate(rate)
    return arrivals


async def open_loop(
    target: Target, requests: Sequence[Request], on_result: Callable[[Result], None] | None = None
) -> list[Result]:
    """Send each request at its time, however many are still under way, and wait for all of them."""
    results: list[Result] = []
    async with _session(target) as session, asyncio.TaskGroup() as group:
        start = _clock()
        in_flight = 0

        async def send(request: Request) -> None:
            nonlocal in_flight
            in_flight += 1
            result = await _exchange(session, target, request, start + request.at)
            in_flight -= 1
            result.start = request.at
            _keep(result, results, on_result)

        for request in sorted(requests, key=lambda request: request.at):
            await asyncio.sleep(max(0.0, start + request.at - _clock()))
            if in_flight >= target.max_in_flight:
                _keep(Result(request.kind, request.at, error=OVERLOADED), results, on_result)
            else:
                group.create_task(send(request))
    return results


async def closed_loop(
    target: Target,
    make: Callable[[int], Request],
    *,
    clients: int,
    duration: float,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Let ``clients`` send one request after the other for ``duration`` seconds.

    ``make`` gives the request of a running number; its time is ignored.
    """
    results: list[Result] = []
    numbers = iter(range(1 << 62))
    async with _session(target) as session, asyncio.TaskGroup() as group:
        start = _clock()

        async def client() -> None:
            while (now := _clock()) < start + duration:
                result = await _exchange(session, target, make(next(numbers)), now)
                result.start = now - start
                _keep(result, results, on_result)

        for _ in range(clients):
            group.create_task(client())
    return results


def percentile(values: Iterable[float], q: float) -> float:
    """The nearest-rank ``q``-th percentile (0 to 100), NaN of nothing. Infinite values are the last."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * q / 100) - 1)]


def latencies(results: Iterable[Result]) -> list[float]:
    """Seconds to the end of each answer; infinite where it failed."""
    return [result.latency if result.ok else math.inf for result in results]


def first_bytes(results: Iterable[Result]) -> list[float]:
    """Seconds to the first byte of each answer's body; infinite where it failed."""
    return [result.first_byte if result.ok else math.inf for result in results]


def failures(results: Iterable[Result]) -> dict[str, int]:
    """How many requests failed, by status (or by error where no status came), in order."""
    counts: dict[str, int] = {}
    for result in results:
        if not result.ok:
            cause = result.error if result.error or not result.status else str(result.status)
            counts[cause] = counts.get(cause, 0) + 1
    return dict(sorted(counts.items()))


def shares(results: Sequence[Result]) -> dict[str, float]:
    """The part of all answered requests that each server answered, also if by a failure."""
    served = [result.served for result in results if result.served]
    return {server: served.count(server) / len(served) for server in sorted(set(served))}


def _keep(result: Result, results: list[Result], on_result: Callable[[Result], None] | None) -> None:
    results.append(result)
    if on_result is not None:
        on_result(result)


def _session(target: Target) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        base_url=f"http://{target.address}",
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=target.timeout),
        auto_decompress=False,
    )


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    # Sent in pieces, a large body does not hold up the others that this loop sends and times.
    return io.BytesIO(body) if len(body) > LARGE_BODY else body or None


async def _exchange(
    session: aiohttp.ClientSession, target: Target, request: Request, arrival: float
) -> Result:
    result = Result(request.kind, 0.0)
    headers = {"Content-Type": "application/json", **request.headers}
    try:
        async with session.request(
            request.method, request.path, data=_payload(request.body), headers=headers
        ) as response:
            result.status = response.status
            result.served = response.headers.get(target.served_by, "")
            async for chunk in response.content.iter_any():
                if not result.size:
                    result.first_byte = _clock() - arrival
                result.size += len(chunk)
            result.latency = _clock() - arrival
            result.first_byte = min(result.first_byte, result.latency)
    except TimeoutError:
        result.error = f"no whole answer within {target.timeout:g} s"
    except aiohttp.ClientError as error:
        result.error = type(error).__name__
    return result
