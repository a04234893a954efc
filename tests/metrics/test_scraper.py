"""The scrape loop against servers that answer well, badly and not at all."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import logging
import math
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.endpoints.endpoint import Endpoint
from picker.metrics.dialects import DIALECTS
from picker.metrics.dialects.ray_serve import RAY_SERVE
from picker.metrics.dialects.vllm import VLLM as VLLM_DIALECT
from picker.metrics.fetch import FetchError, Outcome
from picker.metrics.scraper import ScrapeOptions, Scraper, _Job, _Target
from scorer.fleet import Fleet, Slot
from scorer.scorers import TRUSTED_AGE
from tests.metrics.rig import PATIENCE, VLLM_PAGE, Rig, http, running_rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from picker.metrics.reading import Reading
    from tests.metrics.rig import Server

VLLM = ScrapeOptions(
    dialect="vllm", interval=0.02, idle_interval=0.02, deadline=PATIENCE, max_page=1024 * 1024
)
RAY_PAGE = (
    b'ray_serve_event_loop_scheduling_latency_ms_count{actor_id="p",component="proxy"} 5\n'
    b'ray_serve_num_ongoing_requests_at_replicas{actor_id="p"} 4\n'
    b'ray_serve_deployment_queued_queries{actor_id="p"} 3\n'
    b"ray_serve_replica_processing_queries 2\n"
)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_rig(VLLM) as rig:
        yield rig


@pytest.fixture
async def hasty_rig() -> AsyncIterator[Rig]:
    """One that gives up soon, for servers that never answer."""
    async with running_rig(dataclasses.replace(VLLM, deadline=0.5)) as rig:
        yield rig


@pytest.fixture
async def ray_rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Ray's dialect, but without its second between two pages."""
    fast = dataclasses.replace(RAY_SERVE, interval=0.02, min_interval=0.0)
    monkeypatch.setitem(DIALECTS, "ray_serve", fast)
    async with running_rig(ScrapeOptions(dialect="ray_serve", idle_interval=0.02, deadline=0.5)) as rig:
        yield rig


def columns(fleet: Fleet, slot: Slot) -> list[float]:
    names = (
        "scraped_load",
        "queue",
        "running",
        "kv_usage",
        "local_running",
        "proxy",
        "fetched_at",
        "draining",
        "reachable",
    )
    return [float(getattr(fleet, name)[slot.row]) for name in names]


UNTOUCHED = [math.nan, math.nan, math.nan, math.nan, math.nan, 0.0, -math.inf, 0.0, 1.0]


# Good pages


async def test_a_page_fills_the_columns_of_its_endpoint(rig: Rig) -> None:
    slot = rig.watch(await rig.server(metrics=http(VLLM_PAGE)))
    await rig.until(lambda: len(rig.pages) >= 2)
    paged, page_time, now = rig.pages[-1]
    assert paged == slot
    assert page_time <= now
    assert columns(rig.fleet, slot)[:4] == [5, 2, 3, 0.5]
    assert math.isnan(rig.fleet.local_running[slot.row])
    assert rig.fleet.fetched_at[slot.row] == now
    assert set(rig.outcomes) == {"ok"}


async def test_connections_are_kept(rig: Rig) -> None:
    server = await rig.server(metrics=http(VLLM_PAGE))
    rig.watch(server)
    await rig.until(lambda: len(rig.pages) >= 5)
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        http(gzip.compress(VLLM_PAGE), "200 OK", "Content-Encoding: gzip"),
        http(VLLM_PAGE.replace(b"\n", b"\r\n")),
        http(b"\xff\xfe{\x00\n" + VLLM_PAGE + b"vllm:num_requests_running{"),
        http(VLLM_PAGE, "200 OK", "Set-Cookie: a=b", "Content-Type: application/octet-stream"),
    ],
    ids=["gzip", "CRLF", "not UTF-8", "odd headers"],
)
async def test_pages_that_are_read_all_the_same(rig: Rig, answer: bytes) -> None:
    slot = rig.watch(await rig.server(metrics=answer))
    await rig.until(lambda: len(rig.pages) >= 1)
    assert rig.load(slot) == 5


async def test_a_page_from_a_server_that_says_its_end_by_closing(rig: Rig) -> None:
    async def http_1_0(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + VLLM_PAGE)

    slot = rig.watch(await rig.server(metrics=http_1_0))
    await rig.until(lambda: len(rig.pages) >= 2)
    assert rig.load(slot) == 5


async def test_the_dialect_is_told_from_the_page() -> None:
    async with running_rig(ScrapeOptions()) as rig:
        vllm = rig.watch(await rig.server(metrics=http(VLLM_PAGE)))
        ray = rig.watch(await rig.server(metrics=http(RAY_PAGE)))
        await rig.until(lambda: len({slot for slot, _, _ in rig.pages}) == 2)
        assert rig.load(vllm) == 5
        assert rig.load(ray) == 7
        assert rig.fleet.local_running[ray.row] == 2
        assert rig.fleet.proxy[[vllm.row, ray.row]].tolist() == [False, True]


async def test_metrics_may_be_elsewhere_than_traffic() -> None:
    async with running_rig(ScrapeOptions(dialect="vllm", path="/stats?x=1")) as rig:
        metrics, traffic = await rig.server(), await rig.server()
        metrics.answers["/stats?x=1"] = http(VLLM_PAGE)
        slot = rig.watch(metrics, traffic=traffic)
        await rig.until(lambda: len(rig.pages) >= 1)
        assert rig.load(slot) == 5
        assert traffic.requests == []


# Bad pages


async def hang(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(VLLM_PAGE * 100)
        await writer.drain()


async def endless_after_gzip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(VLLM_PAGE))
    while True:
        writer.write(bytes(64 * 1024))
        await writer.drain()


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: and more\r\n" * 100)
        await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + VLLM_PAGE)
    await writer.drain()
    await asyncio.Event().wait()


async def close_early(_writer: asyncio.StreamWriter) -> None:
    return


async def cut_off(writer: asyncio.StreamWriter) -> None:
    writer.write(http(VLLM_PAGE)[:-20])


BOMB = gzip.compress(bytes(16 * 1024 * 1024))
BAD_PAGES: dict[str, tuple[bytes | Callable[[asyncio.StreamWriter], Awaitable[None]], set[str]]] = {
    "404": (http(VLLM_PAGE, "404 Not Found"), {"status"}),
    "500": (http(VLLM_PAGE, "500 Internal Server Error"), {"status"}),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", {"status"}),
    "redirect": (http(b"", "302 Found", "Location: /elsewhere"), {"status"}),
    "hangs": (hang, {"timeout"}),
    "slow": (drip, {"timeout"}),
    "endless": (endless, {"too_large"}),
    "huge": (http(VLLM_PAGE * 20_000), {"too_large"}),
    "endless headers": (endless_headers, {"broken"}),
    "gzip bomb": (http(BOMB, "200 OK", "Content-Encoding: gzip"), {"too_large"}),
    "gzip and more": (endless_after_gzip, {"broken"}),
    "gzip cut off": (http(gzip.compress(VLLM_PAGE)[:-9], "200 OK", "Content-Encoding: gzip"), {"broken"}),
    "gzip that is none": (http(VLLM_PAGE, "200 OK", "Content-Encoding: gzip"), {"broken"}),
    "other encoding": (http(VLLM_PAGE, "200 OK", "Content-Encoding: br"), {"broken"}),
    "cut off": (cut_off, {"broken"}),
    "closes early": (close_early, {"broken"}),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", {"broken"}),
    "HTML": (http(b"<html>vllm:num_requests_running 3</html>"), {"format"}),
    "empty": (http(b""), {"format"}),
    "another dialect": (http(RAY_PAGE), {"format"}),
}


@pytest.mark.parametrize("kind", BAD_PAGES)
async def test_a_bad_page_touches_nothing(hasty_rig: Rig, kind: str) -> None:
    rig = hasty_rig
    answer, expected = BAD_PAGES[kind]
    bad_server = await rig.server(metrics=answer, elsewhere=http(VLLM_PAGE))
    bad = rig.watch(bad_server)
    await rig.until(lambda: len(rig.outcomes) >= 1)
    assert set(rig.outcomes) == expected
    good = rig.watch(await rig.server(metrics=http(VLLM_PAGE)))
    await rig.until(lambda: len(rig.pages) >= 2)
    assert {slot for slot, _, _ in rig.pages} == {good}
    np.testing.assert_equal(columns(rig.fleet, bad), UNTOUCHED)
    assert rig.load(good) == 5
    assert "/elsewhere" not in bad_server.requests


async def test_numbers_stay_and_age_when_pages_fail(rig: Rig) -> None:
    server = await rig.server(metrics=http(VLLM_PAGE))
    slot = rig.watch(server)
    await rig.until(lambda: len(rig.pages) >= 1)
    server.answers["/metrics"] = http(b"", "500 Internal Server Error")
    await rig.until(lambda: rig.outcomes.count("status") >= 2)
    assert rig.load(slot) == 5
    assert rig.fleet.fetched_at[slot.row] == rig.pages[-1][2]


async def test_the_log_says_once_that_pages_are_missing_and_once_that_they_are_back(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = await rig.server(metrics=http(b"", "404 Not Found"))
    rig.watch(server)
    await rig.until(lambda: rig.outcomes.count("status") >= 5)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert vars(caplog.records[0])["fields"] == {
        "endpoint": server.address,
        "metrics": server.address,
        "error": "status 404",
    }
    server.answers["/metrics"] = http(VLLM_PAGE)
    await rig.until(lambda: len(rig.pages) >= 3)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "there again" in caplog.text


async def test_an_error_of_our_own_does_not_end_the_scraping(caplog: pytest.LogCaptureFixture) -> None:
    fleet, done = Fleet(), asyncio.Event()
    good = fleet.add("127.0.0.1:2")

    def on_page(slot: Slot, _page_time: float, _now: float) -> None:
        if slot != good:
            raise RuntimeError("a bug")
        done.set()

    async with running_rig(VLLM) as rig:
        server = await rig.server(metrics=http(VLLM_PAGE))
        scraper = Scraper(
            fleet, VLLM, on_page=on_page, random=random.Random(1), clock=asyncio.get_running_loop().time
        )
        scraper.watch(fleet.add("127.0.0.1:1"), Endpoint("127.0.0.1:1", server.address))
        run = asyncio.create_task(scraper.run())
        await scraper.first_attempts(PATIENCE)
        scraper.watch(good, Endpoint("127.0.0.1:2", server.address))
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        assert not run.done()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    assert vars(caplog.records[0])["fields"]["error"] == "internal error"
    assert "a bug" in caplog.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"process_start_time_seconds 1\n", b"process_start_time_seconds 2\n"),
        # With several processes vLLM does not say when it was started.
        (b"vllm:prompt_tokens_total 900\n", b"vllm:prompt_tokens_total 20\n"),
    ],
)
async def test_a_restart_of_the_server_is_told(
    rig: Rig, caplog: pytest.LogCaptureFixture, before: bytes, after: bytes
) -> None:
    caplog.set_level(logging.INFO)
    page = VLLM_PAGE.replace(b"process_start_time_seconds 1\n", b"")
    server = await rig.server(metrics=http(page + before))
    rig.watch(server)
    await rig.until(lambda: len(rig.pages) >= 3)
    assert caplog.records == []
    assert rig.restarts == []
    server.answers["/metrics"] = http(page + after)
    seen = len(rig.pages)
    await rig.until(lambda: len(rig.pages) >= seen + 3)
    (record,) = caplog.records
    assert record.message == "server was restarted"
    assert vars(record)["fields"] == {"endpoint": server.address}
    assert rig.restarts == [rig.fleet.slot_of(server.address)]


async def test_adapters_and_the_size_of_the_cache_are_in_the_columns(rig: Rig) -> None:
    page = VLLM_PAGE + (
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="3000"} 1\n'
        b'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters="b"} 1\n'
    )
    row = rig.watch(await rig.server(metrics=http(page))).row
    await rig.until(lambda: len(rig.pages) >= 1)
    fleet = rig.fleet
    assert fleet.models[row] == {"a"}
    assert fleet.waiting_models[row] == {"b"}
    assert fleet.max_models[row] == 2
    assert (fleet.kv_blocks[row], fleet.block_size[row]) == (3000, 16)


async def test_the_end_of_the_scraping_is_no_failure() -> None:
    async with running_rig(VLLM) as rig:
        server = await rig.server(metrics=hang)
        rig.watch(server)
        await rig.until(lambda: server.requests == ["/metrics"])
    assert rig.outcomes == []


@pytest.mark.parametrize("address", ["", "no port", "host:port:more", "[::1", "127.0.0.1:99999", "x\r\n:1"])
async def test_an_impossible_metrics_address_is_one_more_failure(rig: Rig, address: str) -> None:
    slot = rig.fleet.add("127.0.0.1:1")
    rig.scraper.watch(slot, Endpoint("127.0.0.1:1", address))
    await rig.until(lambda: len(rig.outcomes) >= 1)
    assert rig.outcomes[0] in {"broken", "unreachable"}
    np.testing.assert_equal(columns(rig.fleet, slot), UNTOUCHED)


# Coming and going


async def test_a_page_that_arrives_late_does_not_hit_the_slots_next_tenant(rig: Rig) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def late(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answer.wait()
        writer.write(http(VLLM_PAGE))

    old = rig.watch(await rig.server(metrics=late))
    async with asyncio.timeout(PATIENCE):
        await asked.wait()
    rig.fleet.remove(old)
    new = rig.fleet.add("127.0.0.1:1")
    assert new.row == old.row
    answer.set()
    await rig.until(lambda: "ok" in rig.outcomes)
    assert rig.pages == []
    np.testing.assert_equal(columns(rig.fleet, new), UNTOUCHED)


async def test_a_forgotten_endpoint_is_asked_no_more(rig: Rig) -> None:
    server, other = await rig.server(metrics=http(VLLM_PAGE)), await rig.server(metrics=http(VLLM_PAGE))
    slot = rig.watch(server)
    await rig.until(lambda: len(rig.pages) >= 1)
    rig.scraper.forget(slot)
    rig.scraper.forget(slot)
    asked = len(server.requests)
    rig.watch(other)
    await rig.until(lambda: len(other.requests) >= 5)
    assert len(server.requests) <= asked + 1  # one may have been under way


async def test_a_slot_watched_again_is_asked_at_its_new_address(rig: Rig) -> None:
    old, new = await rig.server(metrics=http(VLLM_PAGE)), await rig.server(metrics=http(VLLM_PAGE))
    slot = rig.watch(old)
    await rig.until(lambda: len(rig.pages) >= 1)
    rig.scraper.watch(slot, Endpoint(old.address, new.address))
    asked = len(old.requests)
    await rig.until(lambda: len(new.requests) >= 3)
    assert len(old.requests) <= asked + 1


async def test_many_endpoints_are_asked_a_bounded_number_at_a_time() -> None:
    async with running_rig(dataclasses.replace(VLLM, concurrency=4, interval=5.0)) as rig:
        server = await rig.server(metrics=http(VLLM_PAGE))
        for number in range(100):
            address = f"127.0.0.2:{1000 + number}"
            rig.scraper.watch(rig.fleet.add(address), Endpoint(address, server.address))
        await rig.scraper.first_attempts(PATIENCE)
        assert len(rig.pages) == 100
        assert server.most_open <= 4
        assert server.connections <= 4


async def test_first_attempts_end_with_the_last_one_or_in_time() -> None:
    async with running_rig(dataclasses.replace(VLLM, deadline=PATIENCE)) as rig:
        await rig.scraper.first_attempts(PATIENCE)
        rig.watch(await rig.server(metrics=http(b"", "404 Not Found")))
        await rig.scraper.first_attempts(PATIENCE)
        assert rig.outcomes == ["status"]
        slot = rig.watch(await rig.server(metrics=hang))
        await rig.scraper.first_attempts(0.01)
        rig.scraper.forget(slot)
        await rig.scraper.first_attempts(PATIENCE)


# When to ask again


def scraper_at_rest(options: ScrapeOptions) -> tuple[Scraper, Slot]:
    fleet = Fleet()
    scraper = Scraper(
        fleet, options, on_page=lambda _slot, _time, _now: None, random=random.Random(3), clock=lambda: 0.0
    )
    slot = fleet.add("127.0.0.1:1")
    scraper.watch(slot, Endpoint("127.0.0.1:1", "127.0.0.1:2"))
    return scraper, slot


async def test_failures_are_asked_again_ever_later_up_to_ten_intervals() -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions(dialect="vllm", interval=0.2))
    target = scraper._targets[slot]
    delays = [scraper._page_failed(target, FetchError(Outcome.TIMEOUT, "")) for _ in range(30)]
    expected = [0.4, 0.8, 1.6] + [2.0] * 27
    assert all(least <= delay <= 1.1 * least for delay, least in zip(delays, expected, strict=True))
    assert len(set(delays)) == len(delays)


@pytest.mark.parametrize("outcome", [Outcome.STATUS, Outcome.FORMAT, Outcome.UNREACHABLE])
async def test_who_never_had_a_page_is_asked_seldom_in_the_end(outcome: Outcome) -> None:
    """But not at once: the page of a Ray node that is starting is one of no known kind for seconds."""
    scraper, slot = scraper_at_rest(ScrapeOptions())
    target = scraper._targets[slot]
    delays = [scraper._page_failed(target, FetchError(outcome, "")) for _ in range(6)]
    assert delays[0] < 3.0
    assert delays[-1] >= 10.0


async def test_a_ray_page_is_fetched_at_most_once_a_second() -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions(interval=0.1))
    target = scraper._targets[slot]
    delays = [scraper._page_arrived(target, RAY_SERVE, RAY_SERVE.read(RAY_PAGE), 0.0) for _ in range(50)]
    assert all(1.0 <= delay <= 2.0 for delay in delays)


async def test_endpoints_watched_together_are_spread_over_the_interval() -> None:
    scraper, _ = scraper_at_rest(ScrapeOptions())
    seconds = []
    for number in range(200):
        slot = scraper._fleet.add(f"127.0.0.2:{number}")
        scraper.watch(slot, Endpoint(f"127.0.0.2:{number}", "127.0.0.1:2"))
        target = scraper._targets[slot]
        seconds.append(scraper._page_arrived(target, RAY_SERVE, RAY_SERVE.read(RAY_PAGE), 0.0))
    quarters = np.histogram(seconds, bins=4, range=(1.0, 2.0))[0]
    assert quarters.sum() == 200
    assert quarters.min() > 25


# How often to ask who rests, and who works

IDLE = VLLM_DIALECT.read(
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n"
)


def arrive(scraper: Scraper, slot: Slot, **changed: Any) -> float:
    reading = dataclasses.replace(IDLE, **changed)
    return scraper._page_arrived(scraper._targets[slot], VLLM_DIALECT, reading, 0.0)


async def test_who_rests_is_asked_ever_less_up_to_a_bound() -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions(idle_interval=4.0))
    delays = [arrive(scraper, slot) for _ in range(12)]
    for delay, most in zip(delays, [0.4, 0.4, 0.8, 1.6, 3.2] + [4.0] * 7, strict=True):
        assert 0.5 * most <= delay <= most


@pytest.mark.parametrize(
    "changed", [{"load": 1.0}, {"queue": 1.0}, {"running": 2.0}, {"local_running": 1.0}, {"kv_usage": 0.4}]
)
async def test_who_works_is_asked_at_its_dialects_interval(changed: dict[str, float]) -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions())
    for _ in range(5):
        resting = arrive(scraper, slot)
    assert resting > 1.0
    assert 0.2 <= arrive(scraper, slot, **changed) <= 0.22


async def test_who_has_own_requests_is_asked_at_its_dialects_interval() -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions())
    scraper._fleet.own[slot.row] = 1
    delays = [arrive(scraper, slot, load=2.0) for _ in range(5)]
    scraper._fleet.own[slot.row] = 0
    scraper._fleet.sent_at[slot.row] = -4.0
    delays += [arrive(scraper, slot, load=2.0) for _ in range(5)]
    assert max(delays[1:]) <= 0.22
    scraper._fleet.sent_at[slot.row] = -6.0
    arrive(scraper, slot)
    assert arrive(scraper, slot) > 0.22


# Pages that own numbers explain


def scraper_with_traffic(options: ScrapeOptions | None = None) -> tuple[Scraper, Slot]:
    """Three requests were sent there, and that is what its pages show."""
    scraper, slot = scraper_at_rest(options or ScrapeOptions())
    scraper._fleet.own[slot.row] = scraper._fleet.own_at_page[slot.row] = 3
    arrive(scraper, slot, load=3.0)
    return scraper, slot


async def test_pages_that_show_own_requests_only_are_asked_for_ever_less_up_to_a_bound() -> None:
    scraper, slot = scraper_with_traffic()
    delays = [arrive(scraper, slot, load=3.0) for _ in range(8)]
    for delay, least in zip(delays, [0.4, 0.8, 1.6] + [2.0] * 5, strict=True):
        assert least <= delay <= 1.1 * least
    longest = max(delays) + ScrapeOptions().deadline
    assert longest < TRUSTED_AGE


@pytest.mark.parametrize(
    "news",
    [
        {"load": 4.0},
        {"load": math.nan},
        {"queue": 1.0},
        {"kv_usage": 0.75},
        {"kv_usage": 0.6},
        {"models": frozenset({"adapter"})},
        {"waiting_models": frozenset({"adapter"})},
    ],
)
async def test_a_page_that_shows_more_ends_that(news: dict[str, Any]) -> None:
    scraper, slot = scraper_with_traffic()
    for _ in range(5):
        arrive(scraper, slot, load=3.0)
    assert arrive(scraper, slot, **({"load": 3.0} | news)) <= 0.22


@pytest.mark.parametrize(
    ("column", "value"), [("full_until", 1.0), ("untracked", 1.0), ("breaker_open", True)]
)
async def test_who_refuses_or_fails_or_does_not_show_ends_is_asked_often(column: str, value: float) -> None:
    scraper, slot = scraper_with_traffic()
    getattr(scraper._fleet, column)[slot.row] = value
    assert max(arrive(scraper, slot, load=3.0) for _ in range(3)) <= 0.22


async def test_the_bound_of_who_rests_is_one_for_who_explains_itself_too() -> None:
    scraper, slot = scraper_with_traffic(ScrapeOptions(idle_interval=0.5))
    assert max(arrive(scraper, slot, load=3.0) for _ in range(5)) <= 0.55


async def trusted(rig: Rig, slot: Slot, load: float) -> None:
    """Wait until the pages of an endpoint with so many own requests are asked for seldom."""
    rig.fleet.own[slot.row] = rig.fleet.own_at_page[slot.row] = load
    await rig.until(lambda: rig.scraper._targets[slot].explained >= 3)


SELDOM = ScrapeOptions(dialect="vllm", interval=0.02, idle_interval=3600.0, deadline=0.5)
RUNS_3 = VLLM_PAGE.replace(b"waiting 2", b"waiting 0")


async def asked_seldom(rig: Rig) -> tuple[Server, Slot]:
    """A server whose pages own numbers explain, which was asked for one a moment ago."""
    server = await rig.server(metrics=http(RUNS_3))
    slot = rig.watch(server)
    await trusted(rig, slot, 3)
    rig.scraper._targets[slot].explained = 20
    await rig.until(lambda: rig.scraper._targets[slot].explained == 21)
    return server, slot


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that own numbers explain are not asked for again within the test unless there is news."""
    monkeypatch.setattr("picker.metrics.scraper._LONGEST_EXPLAINED", 3600.0)


@pytest.mark.usefixtures("never_by_itself")
async def test_the_end_of_a_server_that_is_asked_seldom_is_noticed_at_once() -> None:
    async with running_rig(SELDOM) as rig:
        server, slot = await asked_seldom(rig)
        await server.stop()
        await rig.until(lambda: not rig.fleet.reachable[slot.row])


@pytest.mark.usefixtures("never_by_itself")
async def test_a_server_whose_requests_fail_is_asked_at_once() -> None:
    async with running_rig(SELDOM) as rig:
        server, slot = await asked_seldom(rig)
        asked = len(server.requests)
        rig.fleet.breaker_open[slot.row] = True
        await rig.until(lambda: len(server.requests) >= asked + 5)


async def test_a_server_that_cannot_be_connected_to_is_asked_again_soon_until_that_is_sure() -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions(dialect="vllm"))
    target = scraper._targets[slot]
    target.endpoint = Endpoint("127.0.0.1:1", "127.0.0.1:1")
    unreachable = FetchError(Outcome.UNREACHABLE, "")
    delays = [scraper._page_failed(target, unreachable) for _ in range(5)]
    assert max(delays[:2]) <= 0.22
    assert not scraper._fleet.reachable[slot.row]
    assert min(delays[2:]) >= 1.6


async def test_a_probe_that_fails_asks_for_the_page_that_was_trusted(ray_rig: Rig) -> None:
    page = RAY_PAGE.replace(b" 3\n", b" 0\n")
    traffic = await ray_rig.server(**ray_proxy(http(b"{}")))
    metrics = await ray_rig.server(metrics=http(page))
    slot = ray_rig.watch(metrics, traffic=traffic)
    await trusted(ray_rig, slot, 4)
    ray_rig.scraper._schedule.move(
        time.monotonic() + 3600.0, _Job(target_of(ray_rig, slot), ray_rig.scraper._scrape)
    )
    asked = len(metrics.requests)
    await traffic.stop()
    await ray_rig.until(lambda: len(metrics.requests) > asked)


def target_of(rig: Rig, slot: Slot) -> _Target:
    return rig.scraper._targets[slot]


# In bursts


@pytest.mark.parametrize(
    ("delay", "due"), [(1.0, 101.0), (1.1, 101.0), (2.0, 102.0), (0.55, 100.5), (0.3, 100.33)]
)
async def test_jobs_of_few_endpoints_are_done_in_bursts_if_they_can_wait(delay: float, due: float) -> None:
    scraper, _ = scraper_at_rest(ScrapeOptions())
    assert scraper._aligned(100.03, delay) == pytest.approx(due)


async def test_jobs_of_many_endpoints_are_spread_evenly() -> None:
    scraper, _ = scraper_at_rest(ScrapeOptions())
    for number in range(20):
        scraper.watch(scraper._fleet.add(f"127.0.0.2:{number}"), Endpoint("", ""))
    assert scraper._aligned(100.03, 1.04) == pytest.approx(101.07)


@given(st.floats(0, 1e6), st.floats(0.01, 30))
def test_a_burst_is_never_much_earlier_or_later_than_a_job_wants(started: float, delay: float) -> None:
    scraper, _ = scraper_at_rest(ScrapeOptions())
    due = scraper._aligned(started, delay)
    assert started + 0.5 * delay <= due <= started + delay + 0.11


@pytest.mark.parametrize(
    ("page_in", "quiet", "probe_in"),
    [(2.0, 0, 1.0), (1.0, 0, 1.0), (4.0, 3, 4.0), (10.0, 0, 1.0), (0.0, 0, 7.0)],
)
async def test_a_probe_is_done_with_a_page(page_in: float, quiet: int, probe_in: float) -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions(dialect="ray_serve"))  # its clock shows 0
    target = scraper._targets[slot]
    target.quiet, target.page_due = quiet, page_in
    assert scraper._with_page(target, 7.0) == probe_in


# The same page once more


async def test_a_compressed_page_that_comes_again_is_not_read_again(rig: Rig) -> None:
    read: list[int] = []

    def counting(page: bytes) -> Reading:
        read.append(len(page))
        return VLLM_DIALECT.read(page)

    rig.scraper._dialect = dataclasses.replace(VLLM_DIALECT, read=counting)

    def packed(page: bytes, at: int) -> bytes:
        return http(gzip.compress(page, mtime=at), "200 OK", "Content-Encoding: gzip")

    server = await rig.server(metrics=packed(VLLM_PAGE, 1))
    slot = rig.watch(server)
    await rig.until(lambda: len(rig.pages) >= 3)
    server.answers["/metrics"] = packed(VLLM_PAGE, 2)
    seen = len(rig.pages)
    await rig.until(lambda: len(rig.pages) >= seen + 3)
    assert len(read) == 1
    assert rig.fleet.fetched_at[slot.row] == rig.pages[-1][2]
    server.answers["/metrics"] = packed(VLLM_PAGE.replace(b"running 3", b"running 4"), 3)
    await rig.until(lambda: rig.load(slot) == 6)
    assert len(read) == 2
    server.answers["/metrics"] = http(b"", "500 Internal Server Error")
    await rig.until(lambda: "status" in rig.outcomes)
    server.answers["/metrics"] = packed(VLLM_PAGE, 4)
    await rig.until(lambda: rig.load(slot) == 5)


async def test_an_old_export_that_comes_again_still_speaks_of_its_own_time(ray_rig: Rig) -> None:
    def packed(page: bytes) -> bytes:
        return http(gzip.compress(page), "200 OK", "Content-Encoding: gzip")

    server = await ray_rig.server(**ray_proxy(http(b"{}")))
    server.answers["/metrics"] = packed(RAY_PAGE)
    slot = ray_rig.watch(server)
    await ray_rig.until(lambda: len(ray_rig.pages) >= 2)
    server.answers["/metrics"] = packed(RAY_PAGE.replace(b" 5\n", b" 6\n"))
    first = len(ray_rig.pages)
    await ray_rig.until(lambda: len(ray_rig.pages) >= first + 6)
    times = [page_time for _, page_time, _ in ray_rig.pages[first + 1 :]]
    assert len(set(times)) == 1
    assert ray_rig.load(slot) == 7


async def test_the_bound_does_not_shorten_a_configured_interval() -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions(interval=30.0))
    assert min(arrive(scraper, slot) for _ in range(5)) >= 30.0


async def test_a_page_that_fails_ends_the_rest() -> None:
    scraper, slot = scraper_at_rest(ScrapeOptions(dialect="vllm"))
    for _ in range(8):
        arrive(scraper, slot)
    delay = scraper._page_failed(scraper._targets[slot], FetchError(Outcome.UNREACHABLE, ""))
    assert delay < 0.5
    assert not scraper._resting.any()


async def test_very_many_that_work_share_a_bounded_number_of_pages() -> None:
    scraper, first = scraper_at_rest(ScrapeOptions())
    for number in range(999):
        scraper.watch(scraper._fleet.add(f"127.0.0.2:{number}"), Endpoint("", ""))
    scraper._look(0.0)
    assert arrive(scraper, first, load=1.0) >= 1000 / 500
    assert 2.0 <= arrive(scraper, first, load=2.0) <= 2.2


async def test_those_that_rest_are_asked_evenly_spread() -> None:
    scraper, _ = scraper_at_rest(ScrapeOptions(idle_interval=4.0))
    slots = [scraper._fleet.add(f"127.0.0.2:{number}") for number in range(400)]
    at: list[float] = []
    for slot in slots:
        scraper.watch(slot, Endpoint("", ""))
        due = 0.0
        while due < 30.0:
            due += arrive(scraper, slot)
        at.append(due)
    counts = np.histogram(at, bins=6, range=(30.0, 32.4))[0]
    assert counts.min() > 0.5 * counts.mean()


async def test_a_request_ends_the_rest_of_its_endpoint_and_of_no_other() -> None:
    options = ScrapeOptions(dialect="vllm", interval=0.02, idle_interval=3600.0, deadline=0.5)
    async with running_rig(options) as rig:
        page = http(VLLM_PAGE.replace(b" 3\n", b" 0\n").replace(b" 2\n", b" 0\n"))
        one, other = await rig.server(metrics=page), await rig.server(metrics=page)
        slots = [rig.watch(one), rig.watch(other)]
        targets = [rig.scraper._targets[slot] for slot in slots]
        await rig.until(lambda: all(target.quiet >= 6 for target in targets))
        before = len(one.requests), len(other.requests)
        rig.fleet.sent_at[slots[0].row] = time.monotonic()
        await rig.until(lambda: len(one.requests) >= before[0] + 5)
        assert len(other.requests) <= before[1] + 1


async def test_a_proxy_that_rests_is_probed_as_soon_as_it_gets_a_request(ray_rig: Rig) -> None:
    ray_rig.scraper._options = dataclasses.replace(ray_rig.scraper._options, idle_interval=3600.0)
    idle = RAY_PAGE.replace(b" 4\n", b" 0\n").replace(b" 3\n", b" 0\n").replace(b" 2\n", b" 0\n")
    server = await ray_rig.server(**{**ray_proxy(http(b'{"/": "default"}')), "metrics": http(idle)})
    slot = ray_rig.watch(server)
    await ray_rig.until(lambda: ray_rig.scraper._targets[slot].quiet >= 6)
    server.answers["/-/routes"] = DRAINED
    server.answers["/-/healthz"] = DRAINED
    ray_rig.fleet.sent_at[slot.row] = time.monotonic()
    await ray_rig.until(lambda: bool(ray_rig.fleet.draining[slot.row]))


async def test_large_pages_are_asked_for_compressed(rig: Rig) -> None:
    large = VLLM_PAGE + b"x 1\n" * 50_000
    server = await rig.server(metrics=http(large))
    rig.watch(server)
    await rig.until(lambda: len(server.heads) >= 2)
    assert [b"Accept-Encoding: gzip" in head for head in server.heads[:2]] == [False, True]


def test_an_unknown_dialect_is_an_error_that_names_the_known_ones() -> None:
    known = "use one of auto, ray_serve, haproxy, vllm"
    with pytest.raises(ValueError, match=f"unknown metrics dialect 'tgi'; {known}"):
        scraper_at_rest(ScrapeOptions(dialect="tgi"))


# Probes of a Ray proxy


def ray_proxy(routes: bytes, health: bytes | None = None) -> dict[str, bytes]:
    return {"metrics": http(RAY_PAGE), "-/routes": routes, "-/healthz": health or http(b"success")}


DRAINED = http(b"This node is being drained.", "503 Service Unavailable")


async def test_routes_of_a_proxy(ray_rig: Rig) -> None:
    fleet = ray_rig.fleet
    server = await ray_rig.server(**ray_proxy(http(b'{"/b": "app", "/": "default"}')))
    slot = ray_rig.watch(server)
    await ray_rig.until(lambda: int(fleet.route_set[slot.row]) >= 0)
    assert fleet.route_sets[fleet.route_set[slot.row]] == ("/", "/b")
    assert "/-/healthz" not in server.requests
    server.answers["/-/routes"] = http(b"No replicas are available yet.", "503 Service Unavailable")
    await ray_rig.until(lambda: fleet.route_sets[fleet.route_set[slot.row]] == ())
    assert not fleet.draining[slot.row]


async def test_a_proxy_that_is_drained_and_drained_no_more(ray_rig: Rig) -> None:
    fleet = ray_rig.fleet
    server = await ray_rig.server(**ray_proxy(http(b'{"/": "default"}')))
    slot = ray_rig.watch(server)
    await ray_rig.until(lambda: int(fleet.route_set[slot.row]) >= 0)
    server.answers["/-/routes"] = server.answers["/-/healthz"] = DRAINED
    await ray_rig.until(lambda: bool(fleet.draining[slot.row]))
    assert fleet.route_sets[fleet.route_set[slot.row]] == ("/",)
    assert fleet.reachable[slot.row]
    server.answers["/-/routes"] = http(b'{"/": "default"}')
    await ray_rig.until(lambda: not fleet.draining[slot.row])


async def test_health_is_asked_where_routes_say_nothing(ray_rig: Rig) -> None:
    server = await ray_rig.server(**ray_proxy(http(b"", "404 Not Found"), DRAINED))
    slot = ray_rig.watch(server)
    await ray_rig.until(lambda: bool(ray_rig.fleet.draining[slot.row]))
    assert ray_rig.fleet.route_set[slot.row] == -1


async def test_a_proxy_is_probed_though_its_metrics_cannot_be_had(ray_rig: Rig) -> None:
    metrics = await ray_rig.server()
    traffic = await ray_rig.server(**ray_proxy(DRAINED))
    slot = ray_rig.watch(metrics, traffic=traffic)
    await ray_rig.until(lambda: bool(ray_rig.fleet.draining[slot.row]))
    assert math.isnan(ray_rig.load(slot))


async def test_a_proxy_that_died_is_unreachable_until_it_answers_again(ray_rig: Rig) -> None:
    fleet = ray_rig.fleet
    metrics = await ray_rig.server(metrics=http(RAY_PAGE))
    traffic = await ray_rig.server(**ray_proxy(http(b"{}")))
    slot = ray_rig.watch(metrics, traffic=traffic)
    await ray_rig.until(lambda: len(traffic.requests) >= 2)
    await traffic.stop()
    await ray_rig.until(lambda: not fleet.reachable[slot.row])
    await traffic.start()
    await ray_rig.until(lambda: bool(fleet.reachable[slot.row]))


async def test_a_probe_that_fails_now_and_then_is_forgiven(ray_rig: Rig) -> None:
    fleet = ray_rig.fleet
    server = await ray_rig.server(**ray_proxy(http(b"{}")))
    answers = iter([True, False] * 5)
    seen: list[bool] = []

    async def moody(writer: asyncio.StreamWriter) -> None:
        seen.append(bool(fleet.reachable[slot.row]))
        if next(answers, True):
            writer.write(http(b"{}"))

    server.answers["/-/routes"] = moody
    slot = ray_rig.watch(server)
    await ray_rig.until(lambda: len(seen) >= 10)
    assert all(seen)


async def test_a_server_whose_page_is_on_the_traffic_port_is_unreachable_when_that_is_closed(
    rig: Rig,
) -> None:
    server = await rig.server(metrics=http(VLLM_PAGE))
    slot = rig.watch(server)
    await rig.until(lambda: len(rig.pages) >= 1)
    await server.stop()
    await rig.until(lambda: not rig.fleet.reachable[slot.row])
    assert rig.load(slot) == 5
    await server.start()
    await rig.until(lambda: bool(rig.fleet.reachable[slot.row]))


async def test_a_closed_metrics_port_says_nothing_of_another_traffic_port(rig: Rig) -> None:
    metrics, traffic = await rig.server(), await rig.server()
    await metrics.stop()
    slot = rig.watch(metrics, traffic=traffic)
    await rig.until(lambda: len(rig.outcomes) >= 4)
    assert set(rig.outcomes) == {"unreachable"}
    np.testing.assert_equal(columns(rig.fleet, slot), UNTOUCHED)
