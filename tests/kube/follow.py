"""Reads a source's sets and waits until they are what they should be."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from picker.endpoints.endpoint import Endpoint, Source

DEADLINE = 20.0


class Followed:
    """The present set of a source, read in a task of its own, as the app does."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._changed = asyncio.Event()
        self.endpoints: tuple[Endpoint, ...] | None = None
        self.sets = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._source.sets()) as sets:
            async for endpoints in sets:
                self.endpoints = endpoints
                self.sets += 1
                self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds`` is true of the present set."""
        async with asyncio.timeout(DEADLINE):
            while not holds():
                if self._task.done():
                    self._task.result()
                self._changed.clear()
                await self._changed.wait()

    async def shows(self, *addresses: str) -> None:
        """Wait until the set has these addresses and no others."""
        try:
            await self.until(lambda: self.addresses == set(addresses))
        except TimeoutError:
            raise AssertionError(f"{self.addresses} instead of {set(addresses)}") from None

    @property
    def addresses(self) -> Collection[str] | None:
        """None before the first set."""
        return None if self.endpoints is None else {endpoint.address for endpoint in self.endpoints}

    def named(self, name: str) -> Endpoint:
        """The endpoint of a name."""
        return next(endpoint for endpoint in self.endpoints or () if endpoint.name == name)
