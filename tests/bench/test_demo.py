"""The demo: what it plays is the same each time, what it says is right, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from contextlib import asynccontextmanager
from io import StringIO
from typing import TYPE_CHECKING

import aiohttp
import pytest
from rich.console import Console

from bench.demo import report, scenario
from bench.demo.report import Run, conclusion, picker_is_ahead
from bench.demo.stage import DOORS, StageError, endpoints_file, require_free
from bench.rig import procs
from bench.rig.child import PROJECT
from bench.rig.load import Result
from bench.rig.ports import free_port
from bench.rig.ray import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from picker.gateway.envoy_config import Balancer

DEADLINE = 120.0
PROXIES = [Proxy(f"127.0.0.1:{port}", f"127.0.0.1:{port + 10}") for port in (1, 2, 3)]


def answer(latency: float = 0.1, status: int = 200, proxy: int = 0) -> Result:
    return Result(
        "short", 0.0, status=status, first_byte=latency, latency=latency, served=PROXIES[proxy].address
    )


def run(balancer: Balancer, *, failed: int, late: int = 0, order: str = "first") -> Run:
    good = 10 - failed - late
    results = [answer()] * good + [answer(3.0)] * late + [answer(0.002, 503, 1)] * failed
    return Run(order, balancer, results)


def shown(runs: list[Run]) -> str:
    console = Console(file=StringIO(), width=160)
    console.print(report.table(runs, PROXIES, busy=1))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def free_row() -> int:
    """The first of as many neighbouring free ports as there are doors."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + len(DOORS)):
                require_free(port)
        except StageError:
            continue
        return first


@asynccontextmanager
async def demo(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The demo with simulated servers, in a session of its own: who is left in it was left behind."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.demo", "--backend", "sim", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=PROJECT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(DEADLINE):
            yield process
        assert procs.session_members(process.pid) == []
    finally:
        procs.kill_session(process.pid)
        await process.communicate()


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if text in line.decode():
            return line.decode()
    raise AssertionError(f"the demo ended without saying {text!r}")


def test_the_same_seed_gives_the_same_requests_and_another_one_others() -> None:
    assert scenario.interactive(5, seed=1) == scenario.interactive(5, seed=1)
    assert scenario.interactive(5, seed=1) != scenario.interactive(5, seed=2)
    assert {request.kind for request in scenario.interactive(20, seed=1)} == {"short", "long", "stream"}


def test_the_work_fits_the_cluster_but_not_the_busy_proxy() -> None:
    assert scenario.RATE * scenario.MEAN_SECONDS < scenario.PROXIES * scenario.SLOTS / 5
    assert scenario.BATCH_CLIENTS > scenario.SLOTS + scenario.QUEUE


def test_a_row_counts_failures_as_infinitely_late_and_shares_over_all_requests() -> None:
    order, balancer, requests, failed, *latencies, in_time, first, busy, last = report.cells(
        run("least_request", failed=2, late=1), PROXIES
    )

    assert (order, balancer, requests, failed) == ("first", "least request", "10", "503 x 2")
    assert latencies == ["100", "∞", "∞"]
    assert (in_time, first, busy, last) == ("70.0%", "80.0%", "20.0%", "0.0%")


def test_a_run_without_requests_is_shown_too() -> None:
    assert report.cells(Run("first", "picker", []), PROXIES)[2:] == ["0", "0", *["-"] * 7]


def test_the_table_names_the_busy_proxy_and_every_balancer() -> None:
    text = shown([run("round_robin", failed=3), run("picker", failed=0)])

    assert "proxy 2 (busy)" in text
    assert re.search(r"round robin .* 503 x 3 ", text)
    assert re.search(r"picker .* 0 .* 100.0%", text)


def test_the_closing_line_says_so_when_the_picker_is_ahead_in_both_orders() -> None:
    failed: dict[Balancer, int] = {"round_robin": 3, "least_request": 5, "picker": 1}
    runs = [
        run(balancer, failed=count, order=order)
        for order in report.ORDERS
        for balancer, count in failed.items()
    ]

    assert picker_is_ahead(runs)
    assert "round robin: 6 failed, 14 within 1 s" in conclusion(runs)
    assert "fewer failures and more answers in time than both, in both orders" in conclusion(runs)


@pytest.mark.parametrize(("failed", "late"), [(3, 0), (0, 8)])
def test_the_closing_line_does_not_flatter_the_picker(failed: int, late: int) -> None:
    runs = [run("round_robin", failed=3), run("picker", failed=failed, late=late)]

    assert not picker_is_ahead(runs)
    assert "was not ahead" in conclusion(runs)


def test_progress_without_a_terminal_is_a_few_plain_lines() -> None:
    console = Console(file=StringIO(), width=160)
    with report.progress(console, "picker (first order)", 8) as tell:
        for status in (200, 503, 200, 200, 200, 200, 200, 200):
            tell(answer(status=status))

    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "picker (first order): 2 of 8 answered, 1 failed"
    assert len(lines) == 4


def test_the_picker_is_told_every_proxy_with_its_metrics_address() -> None:
    assert endpoints_file(PROXIES[:1]) == {
        "endpoints": [
            {"name": "proxy-1", "address": "127.0.0.1", "port": 1, "metricsHost": "127.0.0.1:11"},
        ]
    }


async def test_a_taken_port_is_one_line_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with demo("--port", str(port)) as process:
            _, errors = await process.communicate()

    assert process.returncode == 1
    assert re.fullmatch(rf"error: port {port} of 127\.0\.0\.1 is taken: .*--port.*\n", errors.decode())


@pytest.mark.envoy
async def test_it_ends_with_the_table_and_leaves_nothing() -> None:
    async with demo("--seconds", "1", "--port", str(free_row())) as process:
        output, errors = await process.communicate()
    text = output.decode()

    assert errors.decode() == ""
    assert process.returncode == 0
    for order in report.ORDERS:
        for title in report.TITLES.values():
            assert re.search(rf"│ {order} +│ {title} ", text)
    assert "requests each, both orders together" in text


@pytest.mark.envoy
async def test_kept_it_answers_at_every_door_until_it_is_interrupted() -> None:
    first = free_row()
    async with demo("--seconds", "0.5", "--keep", "--port", str(first)) as process:
        await line_with(process, "The response header x-served-by")
        async with aiohttp.ClientSession() as session:
            for port in range(first, first + len(DOORS)):
                url = f"http://127.0.0.1:{port}{scenario.CHAT}"
                async with session.post(url, data=scenario.chat("hello", sleep=0)) as response:
                    assert response.status in {200, 503}
                    assert response.headers["x-served-by"].startswith("127.0.0.1:")
        process.send_signal(signal.SIGINT)
        await process.communicate()

    assert process.returncode == 0


@pytest.mark.envoy
async def test_a_termination_in_the_middle_takes_everything_down() -> None:
    async with demo("--port", str(free_row())) as process:
        await line_with(process, "letting the batch job")
        assert len(procs.session_members(os.getsid(process.pid))) > 1
        process.terminate()
        output, errors = await process.communicate()

    assert process.returncode == 130
    assert errors.decode() == ""
    assert "interrupted: everything is taken down" in output.decode()
