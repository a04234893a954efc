"""Reads a source's sets, each wait with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from picker.endpoints.endpoint import Endpoint, Source

DEADLINE = 5.0


class Follower:
    """The sets of a source in their order, read in a task of its own, as the app does."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sets: asyncio.Queue[tuple[Endpoint, ...]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self) -> None:
        async for endpoints in self._source.sets():
            self._sets.put_nowait(endpoints)

    async def next(self) -> list[str]:
        """The addresses of the next set."""
        async with asyncio.timeout(DEADLINE):
            return [endpoint.address for endpoint in await self._sets.get()]

    @property
    def unread(self) -> int:
        return self._sets.qsize()
