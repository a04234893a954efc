"""Work that goes on as long as the process: tasks that outlive their faults, and feeds of values."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Self

log = logging.getLogger(__name__)

T = TypeVar("T")

RESTART_AFTER = 1.0
"""Seconds until a task that failed is started again."""


class Background:
    """An async context manager that owns tasks: one that fails is logged and started again."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep_running(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` until the end of the process."""
        self._tasks.add(asyncio.create_task(self._run(name, work), name=name))

    async def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                log.exception(
                    "a background task failed and is started again", extra={"fields": {"task": name}}
                )
            await asyncio.sleep(RESTART_AFTER)


class Feed(Generic[T]):
    """A stream of values that each replace the last: the first is waited for, the rest are followed.

    ``values`` opens the stream; opened again after a fault, it begins with what is then in force.
    ``remote``: the first value may take any time, for it comes from a server that may be down.
    """

    def __init__(
        self,
        name: str,
        values: Callable[[], AsyncGenerator[T, None]],
        apply: Callable[[T], None],
        *,
        remote: bool = False,
    ) -> None:
        self.name = name
        self.remote = remote
        self._open = values
        self._values = values()
        self._apply = apply
        self._first: tuple[T] | None = None

    async def fetch_first(self) -> None:
        """Wait for the first value. What the stream raises when there is none passes through."""
        self._first = (await anext(self._values),)

    def begin(self) -> None:
        """Put the first value in force."""
        if self._first is not None:
            self._apply(self._first[0])

    async def close(self) -> None:
        """End the stream; nobody may be following it."""
        await self._values.aclose()

    async def follow(self) -> None:
        """Put every later value in force as it comes."""
        try:
            async for value in self._values:
                self._apply(value)
        finally:
            await self._values.aclose()
            self._values = self._open()
