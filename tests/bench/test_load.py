"""The load generator: what it counts, and that nothing a server does can break it."""

from __future__ import annotations

import asyncio
import math
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from bench.rig.load import (
    OVERLOADED,
    Request,
    Result,
    Target,
    closed_loop,
    failures,
    first_bytes,
    latencies,
    open_loop,
    percentile,
    poisson_arrivals,
    shares,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

DEADLINE_SECONDS = 20


@asynccontextmanager
async def serving(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield "{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


def result(latency: float, status: int = 200, error: str = "", served: str = "") -> Result:
    return Result("", 0.0, status=status, latency=latency, first_byte=latency, error=error, served=served)


def test_a_failed_request_is_infinitely_late() -> None:
    results = [result(0.1), result(0.2), result(0.001, status=503), result(0.3, error="cut off")]

    assert sorted(latencies(results)) == [0.1, 0.2, math.inf, math.inf]
    assert sorted(first_bytes(results)) == [0.1, 0.2, math.inf, math.inf]
    assert percentile(latencies(results), 50) == 0.2
    assert percentile(latencies(results), 90) == math.inf
    assert failures(results) == {"503": 1, "cut off": 1}


def test_percentiles_are_of_the_values_themselves() -> None:
    values = [float(value) for value in range(1, 101)]

    assert [percentile(values, q) for q in (0, 1, 50, 99, 99.5, 100)] == [1, 1, 50, 99, 100, 100]
    assert math.isnan(percentile([], 50))


@given(st.lists(st.floats(0, 100) | st.just(math.inf), min_size=1), st.floats(0, 100))
def test_a_percentile_leaves_its_part_of_the_values_below(values: list[float], q: float) -> None:
    found = percentile(values, q)

    assert found in values
    assert sum(value <= found for value in values) >= len(values) * q / 100 - 1e-9


def test_shares_are_of_those_that_say_who_answered() -> None:
    results = [result(1, served="a"), result(1, 500, served="a"), result(1, served="b"), result(1)]

    assert shares(results) == {"a": 2 / 3, "b": 1 / 3}
    assert shares([]) == {}


def test_arrivals_are_the_same_for_the_same_seed() -> None:
    arrivals = poisson_arrivals(50, 10, random.Random(1))

    assert arrivals == poisson_arrivals(50, 10, random.Random(1))
    assert arrivals == sorted(arrivals)
    assert all(0 < at < 10 for at in arrivals)
    assert 400 < len(arrivals) < 600


async def test_open_loop_records_what_came_of_each_request() -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        status = 503 if request.path == "/full" else 200
        return web.Response(status=status, body=body * 2, headers={"x-served-by": "me"})

    requests = [Request(b"abc", at=0.01, kind="good"), Request(b"x", path="/full", kind="bad")]
    seen: list[str] = []
    async with serving(handle) as address, asyncio.timeout(DEADLINE_SECONDS):
        results = await open_loop(Target(address=address), requests, lambda result: seen.append(result.kind))

    bad, good = sorted(results, key=lambda result: result.start)
    assert (good.kind, good.status, good.size, good.served, good.ok) == ("good", 200, 6, "me", True)
    assert 0 < good.first_byte <= good.latency
    assert (bad.kind, bad.status, bad.size, bad.ok) == ("bad", 503, 2, False)
    assert sorted(seen) == ["bad", "good"]


async def test_open_loop_bounds_what_is_in_flight() -> None:
    release = asyncio.Event()
    refused: list[Result] = []

    async def handle(_request: web.BaseRequest) -> web.Response:
        await release.wait()
        return web.Response()

    def on_result(result: Result) -> None:
        if result.error == OVERLOADED:
            refused.append(result)
        if len(refused) == 3:
            release.set()

    async with serving(handle) as address, asyncio.timeout(DEADLINE_SECONDS):
        requests = [Request(at=number / 1000) for number in range(5)]
        results = await open_loop(Target(address=address, max_in_flight=2), requests, on_result)

    assert failures(results) == {OVERLOADED: 3}


async def test_a_server_that_never_answers_is_a_failure_at_the_deadline() -> None:
    async def handle(_request: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handle) as address, asyncio.timeout(DEADLINE_SECONDS):
        results = await open_loop(Target(address=address, timeout=0.05), [Request()])

    assert failures(results) == {"no whole answer within 0.05 s": 1}


async def test_an_answer_that_breaks_off_is_a_failure() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(handle) as address, asyncio.timeout(DEADLINE_SECONDS):
        (cut,) = await open_loop(Target(address=address), [Request()])

    assert cut.status == 200
    assert not cut.ok
    assert cut.latency == math.inf


async def test_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    current = most = 0

    async def handle(_request: web.BaseRequest) -> web.Response:
        nonlocal current, most
        current += 1
        most = max(most, current)
        await asyncio.sleep(0)
        current -= 1
        return web.Response()

    made: list[int] = []

    def make(number: int) -> Request:
        made.append(number)
        return Request()

    async with serving(handle) as address, asyncio.timeout(DEADLINE_SECONDS):
        results = await closed_loop(Target(address=address), make, clients=3, duration=0.1)

    assert len(results) >= 3
    assert made == list(range(len(results)))
    assert most <= 3


async def test_nobody_there_is_a_failure_each() -> None:
    results = await open_loop(Target(address="127.0.0.1:1"), [Request(), Request()])

    assert failures(results) == {"ClientConnectorError": 2}
