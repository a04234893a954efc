"""What ``own`` was some seconds ago: a page is old when it arrives, and had own requests in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scorer.contract import Rows
    from scorer.fleet import Fleet

STEP = 0.1
"""Seconds between remembered states; finer than the time a page's age is known to."""
_KEPT = 128
"""Remembered states, 12.8 s: a Ray page speaks of a time up to 10 s before it is fetched."""


class History:
    """A ring of the column ``own`` at every multiple of ``STEP``.

    It is filled when a number is about to change, not by a timer: until then all states since the last
    change are what the column is now.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ring: NDArray[np.float32] = np.zeros((_KEPT, fleet.capacity), dtype=np.float32)
        self._filled = 0
        """Number of the last remembered step, that is its time over ``STEP``."""

    def before_change(self, now: float) -> None:
        """To be called before ``own`` changes."""
        step = int(now / STEP)
        if step > self._filled:
            self._fill(step)

    def at(self, row: int, time: float) -> float:
        """What ``own`` was at about ``time``: to half a step, and not beyond the oldest remembered one."""
        step = round(time / STEP)
        if step > self._filled:
            return float(self._fleet.own[row])
        step = max(step, self._filled - _KEPT + 1)
        return float(self._ring[step % _KEPT, row])

    def reset(self, rows: Rows) -> None:
        """The rows have new tenants; takes a grown fleet in."""
        more = self._fleet.capacity - self._ring.shape[1]
        if more:
            self._ring = np.concatenate([self._ring, np.zeros((_KEPT, more), dtype=np.float32)], axis=1)
        self._ring[:, rows] = 0.0

    def _fill(self, step: int) -> None:
        first = max(self._filled + 1, step - _KEPT + 1)
        for missing in range(first, step + 1):
            self._ring[missing % _KEPT] = self._fleet.own
        self._filled = step
