"""Endpoints, pages, membership and the picker itself going wrong, seen through a real Envoy."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, get_args

import pytest

from bench.rig.picker import Picker
from tests.envoy.conftest import gateway, internal_errors, write_members
from tests.support.upstream import Page
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bench.rig.envoy import Mode
    from tests.envoy.conftest import Gateway
    from tests.support.upstream import Upstream

pytestmark = pytest.mark.envoy

CHAT = "/v1/chat/completions"
POISON = "/poison"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
CLIENTS = 8
REASON = "x-llm-d-request-dropped-reason"

both_modes = pytest.mark.parametrize("mode", ["duplex", "buffered"])


async def statuses(gate: Gateway, requests: int, path: str = CHAT) -> Counter[int]:
    """Send so many requests one after the other."""
    return Counter([await status(gate, path) for _ in range(requests)])


async def status(gate: Gateway, path: str = CHAT) -> int:
    async with gate.client.post(gate.url + path, data=BODY) as answer:
        await answer.read()
        return answer.status


async def get(gate: Gateway) -> int:
    """A request of which the gateway shows the status, but in most modes not the end."""
    async with gate.client.get(gate.url + "/hello") as answer:
        await answer.read()
        return answer.status


async def states(gate: Gateway) -> dict[str, int]:
    """How many endpoints are in which state, without those of which there is none."""
    series = await gate.series()
    found = (
        (name.split('"')[1], value) for name, value in series.items() if name.startswith("picker_endpoints{")
    )
    return {state: int(value) for state, value in found if value}


async def comes_back(gate: Gateway, address: str) -> None:
    """Send requests until one is answered by ``address``."""

    async def answered() -> bool:
        async with gate.client.post(gate.url + CHAT, data=BODY) as answer:
            return answer.status == 200 and answer.headers["x-served-by"] == address

    await eventually(answered)


async def all_eligible(gate: Gateway) -> None:
    """Wait until nothing speaks against any endpoint."""

    async def eligible() -> bool:
        return await states(gate) == {"eligible": len(gate.servers)}

    await eventually(eligible)


async def pool_is(gate: Gateway, *servers: Upstream) -> None:
    """Wait until these and no others are the picker's endpoints."""
    wanted = {f'picker_endpoint_requests_in_flight{{endpoint="{server.address}"}}' for server in servers}

    async def known() -> bool:
        series = await gate.series()
        return {name for name in series if name.startswith("picker_endpoint_requests_in_flight")} == wanted

    await eventually(known)


async def assert_even(gate: Gateway) -> None:
    before = [server.served for server in gate.servers]
    assert await statuses(gate, 90) == {200: 90}
    shares = [server.served - was for server, was in zip(gate.servers, before, strict=True)]
    assert min(shares) >= 10, shares


@asynccontextmanager
async def load(gate: Gateway, clients: int = CLIENTS) -> AsyncIterator[Counter[int]]:
    """Clients that send one request after the other as long as this lasts; counts what they get."""
    seen: Counter[int] = Counter()
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            seen[await status(gate)] += 1
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
        try:
            yield seen
        finally:
            stop.set()


async def more(seen: Counter[int], answers: int) -> None:
    """Wait for so many more answers."""
    enough = seen.total() + answers

    async def reached() -> bool:
        return seen.total() >= enough

    await eventually(reached)


@both_modes
async def test_an_endpoint_that_alone_fails_is_out_until_it_is_mended(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        bad = gate.servers[0]
        bad.failing = True
        seen = await statuses(gate, 100)
        assert 3 <= seen[500] <= 6
        assert await states(gate) == {"breaker_open": 1, "eligible": 2}
        bad.failing = False
        await comes_back(gate, bad.address)
        await all_eligible(gate)
        await assert_even(gate)


@both_modes
async def test_an_endpoint_that_stays_bad_gets_a_trial_now_and_then_and_no_more(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        bad = gate.servers[0]
        bad.failing = True
        await statuses(gate, 40)
        out = bad.served
        async with load(gate, clients=4) as seen:

            async def tried_twice() -> bool:
                return bad.served >= out + 2

            await eventually(tried_twice)  # after 1 s and 2 s more
        assert seen[500] == bad.served - out <= 3
        assert seen[200] > 20 * seen[500]


@both_modes
async def test_requests_whose_end_is_out_of_sight_take_out_and_bring_back_too(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        bad = gate.servers[0]
        bad.failing = True
        assert 3 <= [await get(gate) for _ in range(100)].count(500) <= 6
        bad.failing = False

        async def eligible() -> bool:
            return await get(gate) == 200 and await states(gate) == {"eligible": 3}

        await eventually(eligible)


@both_modes
async def test_an_endpoint_that_fails_now_and_then_is_kept(mode: Mode) -> None:
    async with gateway(mode, servers=2) as gate:
        bad = gate.servers[0]
        for _ in range(40):
            bad.failing = True
            while await get(gate) != 500:
                pass
            bad.failing = False
            mended = bad.served
            while bad.served == mended:  # whose turn it is, is chance: the next failure is not in a row
                assert await get(gate) == 200
        assert await states(gate) == {"eligible": 2}


@both_modes
async def test_a_poison_request_trips_nobody(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        assert await statuses(gate, 30, POISON) == {500: 30}
        assert await states(gate) == {"eligible": 3}
        for _ in range(30):
            assert await status(gate, POISON) == 500
            assert await statuses(gate, 2) == {200: 2}
        assert await states(gate) == {"eligible": 3}


@both_modes
async def test_where_all_fail_nobody_is_held_out(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        await assert_even(gate)
        for server in gate.servers:
            server.failing = True
        assert await statuses(gate, 60) == {500: 60}
        assert await states(gate) == {"eligible": 3}
        for server in gate.servers:
            server.failing = False
        await assert_even(gate)


@both_modes
async def test_an_endpoint_that_is_full_is_left_alone_and_not_taken_for_broken(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        full = gate.servers[0]
        full.full = True

        async def known() -> bool:
            await statuses(gate, 20)
            return (await states(gate)).get("full") == 1

        await eventually(known)
        refused = full.served
        assert refused <= 6
        assert (await statuses(gate, 60))[503] <= 3
        assert "breaker_open" not in await states(gate)
        full.full = False
        await comes_back(gate, full.address)
        await all_eligible(gate)
        await assert_even(gate)


@both_modes
async def test_where_all_are_full_all_are_asked_and_the_client_is_told(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        for server in gate.servers:
            server.full = True
        async with gate.client.post(gate.url + CHAT, data=BODY) as answer:
            assert answer.status == 503
            assert (await answer.read()).startswith(b"Request dropped due to backpressure")
        assert await statuses(gate, 59) == {503: 59}
        assert sum(server.served for server in gate.servers) == 60
        assert all(server.served >= 3 for server in gate.servers)
        assert "breaker_open" not in await states(gate)
        for server in gate.servers:
            server.full = False
        await all_eligible(gate)
        await assert_even(gate)


@both_modes
async def test_an_endpoint_that_is_closed_is_out_and_comes_back_on_the_same_port(mode: Mode) -> None:
    async with gateway(mode, servers=3) as gate:
        await assert_even(gate)
        gone = gate.servers[0]
        await gone.stop()
        assert 3 <= (await statuses(gate, 100))[503] <= 6
        await gone.start()
        await comes_back(gate, gone.address)
        await all_eligible(gate)
        await assert_even(gate)


async def test_an_endpoint_whose_page_cannot_be_had_either_gets_no_trial_before_it_is_back() -> None:
    async with gateway("buffered", servers=3) as gate:
        gone = gate.servers[0]
        await gone.stop()

        async def noticed() -> bool:
            return (await states(gate)).get("unreachable") == 1

        await eventually(noticed)
        assert await statuses(gate, 100) == {200: 100}
        await gone.start()
        await comes_back(gate, gone.address)


async def test_the_picker_is_killed_under_load_and_another_takes_its_place() -> None:
    async with gateway("buffered", servers=3, failure_mode_allow=True) as gate:
        async with load(gate) as seen:
            await more(seen, 50)
            os.kill(gate.picker.pid, signal.SIGKILL)
            await gate.picker.child.wait(10)
            await more(seen, 50)
            again = Picker(
                {
                    "PICKER_ENDPOINTS": ",".join(server.address for server in gate.servers),
                    "PICKER_GRPC_PORT": gate.picker.address.rpartition(":")[2],
                }
            )
            async with again:

                async def picks() -> bool:
                    return 'picker_decisions_total{outcome="picked"} 0.0' not in await again.metrics()

                await eventually(picks)
                await more(seen, 50)
        assert set(seen) == {200}


@both_modes
async def test_members_come_and_go_under_load_without_a_lost_request(mode: Mode, tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    async with gateway(mode, servers=3, members=file) as gate:
        first, second, third = gate.servers

        async def gets_nothing(server: Upstream, seen: Counter[int]) -> None:
            await more(seen, CLIENTS)  # what was under way when it went
            served = server.served
            await more(seen, 50)
            assert server.served == served

        async with load(gate) as seen:
            write_members(file, [first.address, second.address])
            await pool_is(gate, first, second)
            await gets_nothing(third, seen)
            file.write_text("endpoints:\n- {address: not an address\n")

            async def told() -> bool:
                return "its last good content stays" in gate.picker.child.log_text()

            await eventually(told)
            await gets_nothing(third, seen)
            await pool_is(gate, first, second)
            write_members(file, [second.address, third.address])
            await pool_is(gate, second, third)
            before = third.served
            await gets_nothing(first, seen)
            assert third.served > before
        assert set(seen) == {200}


@both_modes
async def test_an_empty_pool_is_told_with_a_reason_until_it_is_filled_again(
    mode: Mode, tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    async with gateway(mode, members=file) as gate:
        assert await status(gate) == 200
        write_members(file, [])

        async def refused() -> bool:
            return await status(gate) == 503

        await eventually(refused)
        for request in (gate.client.post(gate.url + CHAT, data=BODY), gate.client.get(gate.url)):
            async with request as answer:
                assert answer.status == 503
                assert answer.headers[REASON] == "rejected-no-endpoints"
        write_members(file, [server.address for server in gate.servers])

        async def served() -> bool:
            return await status(gate) == 200

        await eventually(served)
        assert await statuses(gate, 20) == {200: 20}


@both_modes
async def test_hostile_metrics_pages_touch_no_request(mode: Mode) -> None:
    pages = get_args(Page)
    async with gateway(mode, servers=len(pages)) as gate:
        for server, page in zip(gate.servers, pages, strict=True):
            server.page = page

        async def asked() -> bool:
            series = await gate.series()
            results = ("timeout", "status")
            counts = [
                series.get(f'picker_scrape_duration_seconds_count{{result="{result}"}}', 0)
                for result in results
            ]
            return counts[0] >= 2 and counts[1] >= 2

        async with load(gate) as seen:
            await eventually(asked)
        assert set(seen) == {200}
        assert await states(gate) == {"eligible": len(pages)}
        assert min(server.served for server in gate.servers) >= seen.total() / (2 * len(pages))
        assert internal_errors(await gate.series()) == 0
