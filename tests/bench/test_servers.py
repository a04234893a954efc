"""The simulated Ray Serve proxies: what they answer when full, broken, draining, and what they show."""

from __future__ import annotations

import asyncio
import gzip
import re
from typing import TYPE_CHECKING

import aiohttp
import orjson
import pytest

from bench.rig.load import Request, Target, open_loop, shares
from bench.rig.servers import RejectedError, Servers, Slots, Work
from picker.metrics.dialects.vllm import VLLM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS = 20


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS)) as session:
        yield session


async def ask(session: aiohttp.ClientSession, address: str, **work: object) -> tuple[int, bytes]:
    async with session.post(f"http://{address}/v1/chat/completions", data=orjson.dumps(work)) as response:
        return response.status, await response.read()


async def get(session: aiohttp.ClientSession, address: str, path: str) -> tuple[int, str]:
    async with session.get(f"http://{address}{path}") as response:
        return response.status, await response.text()


def value(page: str, series: str) -> float:
    match = re.search(rf"^{series}{{.*}} (\S+)$", page, re.MULTILINE)
    assert match, f"{series} is not on the page"
    return float(match[1])


async def page_with(session: aiohttp.ClientSession, address: str, series: str, expected: float) -> str:
    """The first metrics page on which a series has the value."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            _, page = await get(session, address, "/metrics")
            if value(page, series) == expected:
                return page
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("field", ["sleep", "chunks", "interval"])
@pytest.mark.parametrize("bad", ["1", -1, 1e9, True, None])
def test_work_out_of_bounds_is_refused_by_name(field: str, bad: object) -> None:
    with pytest.raises(ValueError, match=f"{field}: a number from 0 to"):
        Work.read(orjson.dumps({field: bad}))


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"null", b'{"sleep'])
def test_an_unreadable_body_asks_for_nothing(body: bytes) -> None:
    assert Work.read(body) == Work()


async def test_a_full_queue_rejects_in_rays_words() -> None:
    slots = Slots(max_ongoing=1, max_queued=1)
    left = asyncio.Event()

    async def hold() -> None:
        async with slots.slot():
            await left.wait()

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(hold())
        await asyncio.sleep(0)
        assert (slots.ongoing, slots.queued) == (1, 1)
        with pytest.raises(RejectedError) as rejected:
            async with slots.slot():
                pass
        left.set()

    assert str(rejected.value) == (
        "Request dropped due to backpressure (num_queued_requests=1, max_queued_requests=1)."
    )
    assert (slots.ongoing, slots.queued) == (0, 0)


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    slots = Slots(max_ongoing=1, max_queued=1)

    async def hold() -> None:
        async with slots.slot():
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold()) for _ in range(2)]
    await asyncio.sleep(0)
    for task in reversed(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert (slots.ongoing, slots.queued) == (0, 0)
    async with asyncio.timeout(DEADLINE_SECONDS), slots.slot():
        assert slots.ongoing == 1


async def test_other_clients_fill_a_server_and_its_page_says_so(session: aiohttp.ClientSession) -> None:
    async with Servers(max_ongoing=2, max_queued=1, report_interval=0.02) as servers:
        (address,) = servers.addresses
        await servers.control(0, busy=3, busy_sleep=600)
        page = await page_with(session, address, "ray_serve_deployment_queued_queries", 1)
        status, text = await ask(session, address)

    assert (status, text) == (
        503,
        b"Request dropped due to backpressure (num_queued_requests=1, max_queued_requests=1).",
    )
    assert value(page, "ray_serve_num_ongoing_requests_at_replicas") == 2
    assert value(page, "ray_serve_replica_processing_queries") == 2
    loop = "ray_serve_event_loop_scheduling_latency_ms_count"
    assert re.search(rf'^{loop}{{.*actor_id="{address}".*component="proxy"', page, re.MULTILINE)


async def test_a_page_is_large_counts_answers_and_can_be_compressed(session: aiohttp.ClientSession) -> None:
    async with Servers(report_interval=0.02, page_bytes=50_000) as servers:
        (address,) = servers.addresses
        assert (await ask(session, address))[0] == 200
        page = await page_with(session, address, "ray_serve_event_loop_scheduling_latency_ms_count", 1)
        async with (
            aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "gzip"}) as gzipped,
            gzipped.get(f"http://{address}/metrics") as response,
        ):
            compressed = await response.read()

    assert value(page, "ray_serve_num_http_requests_total") == 1
    assert 40_000 < len(page) < 60_000
    assert len(compressed) < len(page) / 5
    assert gzip.decompress(compressed).decode().count("\n") == page.count("\n")


async def test_a_server_that_speaks_as_vllm_counts_what_is_there_now(session: aiohttp.ClientSession) -> None:
    async with Servers(pages="vllm", max_ongoing=2) as servers:
        (address,) = servers.addresses
        assert (await ask(session, address))[0] == 200
        await servers.control(0, busy=3, busy_sleep=600)
        page = await page_with(session, address, "vllm:num_requests_waiting", 1)

    assert value(page, "vllm:num_requests_running") == 2
    assert value(page, "vllm:request_success_total") == 1
    assert 45_000 < len(page) < 56_000
    read = VLLM.read(page.encode())
    assert (read.running, read.queue, read.load) == (2, 1, 3)
    assert 0 < read.kv_usage < 1
    assert read.kv_blocks > 0
    assert read.engine


async def test_a_draining_server_says_so_and_still_serves(session: aiohttp.ClientSession) -> None:
    async with Servers() as servers:
        (address,) = servers.addresses
        assert await get(session, address, "/-/healthz") == (200, "success")
        assert await get(session, address, "/-/routes") == (200, '{"/": "default"}')

        await servers.control(0, draining=True)

        assert await get(session, address, "/-/healthz") == (503, "This node is being drained.")
        assert await get(session, address, "/-/routes") == (503, "This node is being drained.")
        assert (await ask(session, address))[0] == 200


async def test_one_of_two_servers_fails_every_request(session: aiohttp.ClientSession) -> None:
    async with Servers(count=2) as servers:
        bad, good = servers.addresses
        await servers.control(0, failing=True)

        assert await ask(session, bad) == (500, b"Internal Server Error")
        assert (await ask(session, good))[0] == 200
        with pytest.raises(ValueError, match="busy: a number from 0 to"):
            await servers.control(0, busy=-1)


async def test_a_streamed_answer_is_server_sent_events(session: aiohttp.ClientSession) -> None:
    async with Servers() as servers:
        status, answer = await ask(session, servers.addresses[0], stream=True, chunks=3)
        results = await open_loop(Target(address=servers.addresses[0], timeout=DEADLINE_SECONDS), [Request()])

    events = answer.split(b"\n\n")
    assert status == 200
    assert [event[:6] for event in events] == [b"data: "] * 4 + [b""]
    assert events[3] == b"data: [DONE]"
    assert orjson.loads(events[0][6:])["choices"][0]["delta"] == {"content": "token 0 "}
    assert shares(results) == {servers.addresses[0]: 1.0}
