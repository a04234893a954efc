"""Waiting for what another process does, with a deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def eventually(
    holds: Callable[[], Awaitable[bool]], *, within: float = 30.0, every: float = 0.02
) -> None:
    """Wait until ``holds`` gives true; TimeoutError after ``within`` seconds."""
    async with asyncio.timeout(within):
        while not await holds():  # noqa: ASYNC110 - another process cannot set an event of ours
            await asyncio.sleep(every)
