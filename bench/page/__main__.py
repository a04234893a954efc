"""Take the pictures of the live page: ``python -m bench.page`` writes docs/live-page*.png.

A real gateway before simulated servers, under load while the pictures are taken. Needs Chromium.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from typing import TYPE_CHECKING

import orjson
from playwright.async_api import async_playwright

from bench.rig.child import PROJECT
from bench.rig.gateway import Gateway
from bench.rig.load import Request, Target, open_loop, poisson_arrivals
from bench.rig.servers import Servers

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser

SERVERS = 6
RATE = 30.0
SECONDS = 40.0
WARM_UP = 25.0
SIZE = (1180, 760)
PHONE = (390, 780)
DOCS = PROJECT / "docs"


def requests(rng: random.Random) -> list[Request]:
    """Chats of a few sessions, so that prefixes repeat."""
    found = []
    for at in poisson_arrivals(RATE, SECONDS, rng):
        session = rng.randrange(12)
        prompt = f"Session {session}. " + "Some words that come again. " * (10 + 5 * (session % 4))
        body = {"model": "llama-3", "prompt": prompt, "sleep": rng.uniform(0.1, 0.8)}
        found.append(Request(orjson.dumps(body), at=at, path="/v1/completions"))
    return found


async def main() -> None:
    """Play, and take the pictures."""
    async with (
        Servers(SERVERS, max_ongoing=8, max_queued=16) as servers,
        Gateway(["--endpoints", ",".join(servers.addresses), "--access-log", "none"], {}) as gateway,
        async_playwright() as playwright,
    ):
        load = asyncio.create_task(open_loop(Target(address=gateway.address), requests(random.Random(1))))
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, dark, size in (("", False, SIZE), ("-dark", True, SIZE), ("-phone", False, PHONE)):
            await picture(browser, gateway.admin, DOCS / f"live-page{name}.png", dark=dark, size=size)
        await browser.close()
        await load


async def picture(browser: Browser, admin: str, file: Path, *, dark: bool, size: tuple[int, int]) -> None:
    """One picture; the first waits until there is something to be seen."""
    page = await browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    await page.goto(f"http://{admin}/")
    await asyncio.sleep(WARM_UP if file.stem == "live-page" else 5.0)
    await page.screenshot(path=str(file))
    await page.close()
    print(file)


if __name__ == "__main__":
    asyncio.run(main())
