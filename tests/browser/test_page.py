"""The live page in a real browser, fed by an observatory of the test's."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from picker.observatory import COLUMNS
from picker.observe import admin
from picker.observe.admin import AdminServer
from picker.observe.http_port import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Scene:
    """An observatory whose numbers the test moves."""

    def __init__(self, endpoints: int) -> None:
        self.endpoints = endpoints
        self.sent = 0
        self.model = "llama"
        self.asked: list[str] = []

    def state(self) -> dict[str, Any]:
        self.sent += 7
        rows = [self._row(number) for number in range(self.endpoints)]
        return {
            "now": time.time(),
            "policy": {"name": "built in", "problem": ""},
            "rates": {"requests": 12.5, "decision_p50_us": 80, "decision_p99_us": 300, "streams": 3},
            "refusals": {"rejected-saturated": 4, "rejected-no-endpoints": 0},
            "clusters": [
                {"name": "old", "endpoints": 1, "wanted": 0.25, "served": 0.26},
                {"name": "new", "endpoints": 1, "wanted": 0.75, "served": 0.74},
            ],
            "columns": COLUMNS,
            "endpoints": rows,
            "decisions": self.decisions(3),
        }

    def _row(self, number: int) -> list[object]:
        told = {
            "address": f"10.0.{number // 250}.{number % 250 + 1}:8000",
            "name": f"pod-{number}",
            "cluster": "old" if number % 2 else "new",
            "state": "full" if number == 1 else "eligible",
            "in_flight": float(self.sent % 5),
            "load": 1.0,
            "queue": None,
            "tokens": 100.0,
            "kv": 0.5,
            "page_age": 0.4,
            "share": 1 / self.endpoints,
            "sent": float(self.sent * (number + 1)),
        }
        return [told[column] for column in COLUMNS]

    def decisions(self, last: int) -> list[dict[str, Any]]:
        return [
            {
                "id": str(number),
                "at": time.time(),
                "method": "POST",
                "path": "/v1/chat/completions",
                "model": self.model,
                "prompt_tokens": 50,
                "matched_tokens": 32.0,
                "endpoint": "10.0.0.1:8000",
                "refused": "",
            }
            for number in range(last)
        ]

    def decision(self, number: str) -> dict[str, Any] | None:
        self.asked.append(number)
        return {
            **self.decisions(1)[0],
            "dropped": [{"by": "breaker", "endpoints": ["10.0.0.9:8000"], "more": 0}],
            "scorers": [{"name": "least-work", "weight": 1.0}],
            "candidates": [{"endpoint": "10.0.0.1:8000", "total": 0.9, "scores": [0.9]}],
            "more": 0,
            "draw": "",
        }

    def explain(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        raise ValueError(str(asked))


@asynccontextmanager
async def viewed(
    browser: Browser, scene: Scene, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[Page]:
    """The open page; whatever its console says against it fails the test."""
    monkeypatch.setattr(admin, "UPDATE_INTERVAL", 0.2)
    server = AdminServer(Place("127.0.0.1", 0, "PICKER_ADMIN_BIND", "PICKER_ADMIN_PORT"), scene)
    await server.start()
    page = await browser.new_page(**options)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        await page.goto(f"http://127.0.0.1:{server.port}/")
        await expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=30_000)
        yield page
        assert complaints == []
    finally:
        await page.close()
        await server.stop()


async def test_rows_appear_and_numbers_move(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(3)
    async with viewed(browser, scene, monkeypatch) as page:
        rows = page.locator("#endpoints tr")
        await expect(rows).to_have_count(3)
        await expect(rows.nth(1)).to_contain_text("full")
        await expect(page.locator("#facts")).to_contain_text("12.5")
        await expect(page.locator("#clusters tr")).to_have_count(2)
        await expect(page.locator("#refusals tr")).to_have_count(1)
        spark = page.locator("#endpoints path").first
        await expect(spark).not_to_have_attribute("d", "", timeout=30_000)
        scene.endpoints = 2
        await expect(rows).to_have_count(2, timeout=30_000)


async def test_a_decision_opens_by_click_and_by_keyboard(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(2)
    async with viewed(browser, scene, monkeypatch) as page:
        await page.locator("#pause").click()
        await page.locator("#decisions tr").nth(1).click()
        await expect(page.locator("#why")).to_contain_text("least-work \u00d7 1.00")
        await expect(page.locator("#why")).to_contain_text("breaker left out 10.0.0.9:8000")
        await page.keyboard.press("Escape")
        await expect(page.locator("#why")).not_to_be_visible()
        await page.locator("#decisions tr").first.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#why")).to_be_visible()
        assert scene.asked == ["1", "0"]


async def test_what_clients_sent_is_text(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(1)
    scene.model = HOSTILE
    async with viewed(browser, scene, monkeypatch) as page:
        await expect(page.locator("#decisions tr").first).to_contain_text(HOSTILE)
        await page.locator("#pause").click()
        await page.locator("#decisions tr").first.click()
        await expect(page.locator("#why")).to_contain_text(HOSTILE)
        assert await page.title() == "serve-picker"
        assert await page.locator("img").count() == 0


async def test_a_thousand_endpoints_can_be_sorted_and_searched(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with viewed(browser, Scene(1000), monkeypatch) as page:
        await expect(page.locator("#endpoints tr")).to_have_count(1000)
        await page.get_by_role("button", name="name").click()
        await expect(page.locator("#endpoints tr").first).to_contain_text("pod-0")
        await page.locator("#filter").fill("pod-999")
        await expect(page.locator("#count")).to_have_text("(1 of 1000)")
        # The page still answers: a frame is drawn while states arrive.
        frames = await page.evaluate(
            "new Promise((done) => { let n = 0; const step = () => ++n < 10 ? requestAnimationFrame(step) :"
            " done(n); step(); })"
        )
        assert frames == 10


async def test_it_fits_a_phone_and_the_dark(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    phone = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}
    async with viewed(browser, Scene(5), monkeypatch, **phone) as page:
        await expect(page.locator("#endpoints tr")).to_have_count(5)
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, "the page itself does not scroll sideways"
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(13, 17, 23)"


async def test_a_lost_connection_is_told(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    server = AdminServer(Place("127.0.0.1", 0, "PICKER_ADMIN_BIND", "PICKER_ADMIN_PORT"), Scene(1))
    monkeypatch.setattr(admin, "UPDATE_INTERVAL", 0.2)
    await server.start()
    page = await browser.new_page()
    await page.goto(f"http://127.0.0.1:{server.port}/")
    await expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=30_000)
    await asyncio.wait_for(server.stop(), 20)
    await expect(page.locator("#connection")).to_have_attribute("data-state", "lost", timeout=30_000)
    await page.close()
