"""Doing many small jobs when they are due, a bounded number at a time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

T = TypeVar("T", bound="Hashable")

_TICK = 0.05
"""Jobs due within so many seconds of each other share one wake-up, since waking up is most of what a
small job costs. None is done early."""
_RESOLUTION = 0.0005
"""Seconds by which a timer of uvloop may be early, which counts whole milliseconds."""


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
        self._free: asyncio.Queue[T] | None = None
        """Due jobs for the workers; there is one while they run, and it never holds more than was pushed."""
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf

    def push(self, due: float, job: T) -> None:
        """Let ``job`` be done at the time ``due``, or as soon after it as a worker is free.

        If it waits already, it is due then instead.
        """
        self._due[job] = due
        heapq.heappush(self._heap, (due, next(self._order), job))
        if self._free is not None and due < self._wakes_at:
            self._wake_for(due, self._clock())

    def hasten(self, due: float, job: T) -> None:
        """Bring a job forward. One that is being done, or is to be done before, stays as it is."""
        if self._due.get(job, due) > due:
            self.push(due, job)

    def move(self, due: float, job: T) -> None:
        """Let a job that waits be done at another time. One that is being done, or due, stays as it is."""
        waits_for = self._due.get(job, due)
        if waits_for != due and waits_for > self._clock():
            self.push(due, job)

    async def run(self, do: Callable[[T], Awaitable[None]], workers: int) -> None:
        """Give each job to ``do`` when it is due, until cancelled. ``do`` must not raise."""
        due = self._free = asyncio.Queue()
        self._release()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(workers):
                    group.create_task(_work(due, do), name=f"scheduled-{number}")
        finally:
            self._free = None
            if self._timer is not None:
                self._timer.cancel()

    def _wake_for(self, due: float, now: float) -> None:
        """Wake up when the next job is due, unless that happens about then anyway."""
        at = max(due, now + _TICK) if due > now else due
        if at < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = at
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._release)

    def _release(self) -> None:
        """Hand on what is due, and see to it that the next is."""
        if self._free is None:
            return
        now = self._clock()
        while self._heap and self._heap[0][0] <= now + _RESOLUTION:
            time, _, job = heapq.heappop(self._heap)
            if self._due.get(job) == time:
                del self._due[job]
                self._free.put_nowait(job)
        self._wakes_at = math.inf
        if self._heap:
            self._wake_for(self._heap[0][0], now)


async def _work(due: asyncio.Queue[T], do: Callable[[T], Awaitable[None]]) -> None:
    while True:
        await do(await due.get())
