"""The benches of scraping and of single steps, run small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import orjson
import pytest
from click.testing import CliRunner

from bench.micro.__main__ import main as micro
from bench.scrape.__main__ import main as scrape
from bench.scrape.pages import KINDS, SIZES, Kind, PageServers, page
from bench.scrape.plain import NAMES, sum_of
from picker.metrics.dialects import detect

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_its_size_and_says_an_idle_servers_load(kind: Kind) -> None:
    body = page(kind)
    assert 0.9 * SIZES[kind] <= len(body) <= 1.4 * SIZES[kind]
    dialect = detect(body)
    assert dialect is not None
    assert dialect.read(body).load == 0


def test_the_plain_loop_finds_the_same_numbers() -> None:
    body = page("vllm").replace(b"} 0.0\n", b"} 3.0\n", 1)
    assert sum_of(body, NAMES["vllm"][0]) == 3.0


@pytest.mark.parametrize(("renewed", "pages"), [(0.0, 3), (1e9, 1)])
async def test_a_page_is_renewed_each_time_or_as_seldom_as_is_said(renewed: float, pages: int) -> None:
    async with PageServers("vllm", 1, renewed) as servers, aiohttp.ClientSession() as session:
        seen = []
        for _ in range(3):
            async with session.get(f"http://{servers.addresses[0]}/metrics") as response:
                seen.append(await response.read())
    assert len(set(seen)) == pages


async def test_every_server_shows_the_page_compressed_or_not() -> None:
    async with PageServers("ray", 2) as servers, aiohttp.ClientSession() as session:
        for encoding in ("gzip", "identity"):
            for address in servers.addresses:
                headers = {"Accept-Encoding": encoding}
                async with session.get(f"http://{address}/metrics", headers=headers) as response:
                    assert await response.read() in [page("ray", state) for state in range(7)]
                    assert response.headers.get("Content-Encoding", "identity") == encoding
        assert await servers.pages() == 4


def test_a_short_bench_of_scraping_gives_figures_of_both_ways(tmp_path: Path) -> None:
    arguments = ["--pages", "small", "--endpoints", "5", "--interval", "0.05", "--idle", "3", "--runs", "1"]
    arguments += ["--duration", "0.5", "--settle", "0", "--out", str(tmp_path)]
    result = CliRunner().invoke(scrape, arguments)
    assert result.exit_code == 0, result.output
    assert "plain loop" in result.output
    (path,) = tmp_path.iterdir()
    figures = orjson.loads(path.read_bytes())
    assert {(cost["who"], cost["kind"]) for cost in figures["pages"]} == {
        ("picker", "small"),
        ("plain", "small"),
    }
    assert [share["endpoints"] for share in figures["idle"]] == [3]


def test_every_step_can_be_done(tmp_path: Path) -> None:
    result = CliRunner().invoke(micro, ["--runs", "1", "--seconds", "0.01", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.iterdir()
    figures = orjson.loads(path.read_bytes())["us_per_step"]
    assert "whole request, buffered, 1000 endpoints" in figures
    assert all(value > 0 for values in figures.values() for value in values)
