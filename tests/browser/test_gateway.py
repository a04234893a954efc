"""The live page of a real gateway under load, and that ``explain`` says the same."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from bench.rig.child import PROJECT
from bench.rig.load import Request, Target, closed_loop
from tests.gateway.conftest import command

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.envoy]

PATIENCE = 60_000
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


async def number(page: Page, column: int) -> float:
    """The first endpoint's number in a column."""
    return float(await page.locator("#endpoints tr").first.locator("td").nth(column).inner_text())


async def test_the_page_moves_under_load_and_explain_agrees(browser: Browser, tmp_path: Path) -> None:
    async with command(tmp_path) as gateway:
        body = json.dumps({"model": HOSTILE, "prompt": "hello " * 50}).encode()
        load = asyncio.create_task(
            closed_loop(
                Target(address=gateway.address),
                lambda _: Request(body, path="/v1/completions"),
                clients=4,
                duration=20.0,
            )
        )
        page = await browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        await page.goto(f"http://{gateway.gateway.admin}/")
        await expect(page.locator("#endpoints tr")).to_have_count(2, timeout=PATIENCE)
        await expect(page.locator("#facts")).not_to_contain_text("requests/s0.0", timeout=PATIENCE)
        spark = page.locator("#endpoints path").first
        await expect(spark).not_to_have_attribute("d", "", timeout=PATIENCE)
        await page.locator("#pause").click()
        # The newest one may be of headers whose body is still to come.
        line = page.locator("#decisions tr", has_text=HOSTILE).first
        await expect(line).to_be_visible()
        decision = await line.get_attribute("data-decision")
        await line.click()
        await expect(page.locator("#why")).to_contain_text("least-work")
        assert await page.title() == "serve-picker"
        assert complaints == []

        async def told(*arguments: str) -> str:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "picker", "explain", "--admin", gateway.gateway.admin, *arguments),
                stdout=asyncio.subprocess.PIPE,
                cwd=PROJECT,
            )
            out, _ = await asyncio.wait_for(process.communicate(), 60)
            return out.decode()

        assert decision is not None
        async with gateway.client.get(f"http://{gateway.gateway.admin}/api/decisions/{decision}") as response:
            shown = await response.json()
        explained = json.loads(await told("--decision", decision, "--json"))
        # When it was is told from two clocks, each time anew.
        assert {**explained, "at": 0} == {**shown, "at": 0}
        assert "chosen: " in await told("--model", "llama", "--prompt", "hello")
        await page.close()
        await load
