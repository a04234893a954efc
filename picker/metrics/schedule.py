"""Doing many small jobs when they are due, a bounded number at a time."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

T = TypeVar("T", bound="Hashable")

_TICK = 0.05
"""Jobs due within so many seconds of each other share one wake-up, since waking up is most of what a
small job costs. None is done early."""


class Schedule(Generic[T]):
    """A heap of different jobs and a few workers that take what is due, the longest overdue first.

    A thousand waiting jobs are a thousand heap entries and one timer, not a thousand tasks.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, T]] = []
        self._due: dict[T, float] = {}
        """When each waiting job is due. An entry of the heap that says another time is void."""
        self._order = itertools.count()  # keeps jobs that are due at the same time from being compared
        self._head_changed = asyncio.Event()

    def push(self, due: float, job: T) -> None:
        """Let ``job`` be done at the time ``due``, or as soon after it as a worker is free.

        If it waits already, it is due then instead.
        """
        self._due[job] = due
        entry = (due, next(self._order), job)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._head_changed.set()

    def hasten(self, due: float, job: T) -> None:
        """Bring a job forward. One that is being done, or is to be done before, stays as it is."""
        if self._due.get(job, due) > due:
            self.push(due, job)

    async def run(self, do: Callable[[T], Awaitable[None]], workers: int) -> None:
        """Give each job to ``do`` when it is due, until cancelled. ``do`` must not raise."""
        due: asyncio.Queue[T] = asyncio.Queue()  # never holds more than was pushed
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(_work(due, do), name=f"scheduled-{number}")
            await self._release(due)

    async def _release(self, due: asyncio.Queue[T]) -> None:
        while True:
            self._head_changed.clear()
            now = self._clock()
            while self._heap and self._heap[0][0] <= now:
                time, _, job = heapq.heappop(self._heap)
                if self._due.get(job) == time:
                    del self._due[job]
                    due.put_nowait(job)
            wait = max(self._heap[0][0] - now, _TICK) if self._heap else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._head_changed.wait()


async def _work(due: asyncio.Queue[T], do: Callable[[T], Awaitable[None]]) -> None:
    while True:
        await do(await due.get())
