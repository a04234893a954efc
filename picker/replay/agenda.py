"""Simulated time: what is to be done, in order."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Agenda:
    """Calls things at their time. Those of one time are called in the order they were noted."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start of the simulation."""
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Note a call. There is no taking back: what is called has to see whether it is still wanted."""
        heapq.heappush(self._entries, (time, next(self._order), do))

    def run(self, *, while_: Callable[[], bool]) -> None:
        """Call, until nothing is left or ``while_`` says no."""
        entries = self._entries
        while entries and while_():
            self.now, _, do = heapq.heappop(entries)
            do()
