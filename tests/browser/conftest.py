"""A real Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import async_playwright

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Debian's Chromium, or the one that CHROMIUM names; Playwright's own cannot be had everywhere."""
    binary = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if binary is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or name one by CHROMIUM")
    async with async_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = await playwright.chromium.launch(executable_path=binary, args=flags)
        yield launched
        await launched.close()
