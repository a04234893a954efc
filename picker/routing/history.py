"""What ``own`` was some seconds ago: a page is old when it arrives, and had own requests in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scorer.contract import Rows
    from scorer.fleet import Fleet

STEP = 0.1
"""Seconds of which one number is remembered; finer than the time a page's age is known to."""
LONGEST_FETCH = 0.5
"""Seconds from the question for a page to its being written; the rest of a longer time is the page's age."""
_KEPT = 128
"""Remembered steps, 12.8 s: a Ray page speaks of a time up to 10 s before it is fetched."""


class History:
    """A ring of the most that the column ``own`` was in each step of time.

    It is filled when a number is about to change, not by a timer: until then it has been what the column is
    now, in all steps since the last change.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ring: NDArray[np.float32] = np.zeros((_KEPT, fleet.capacity), dtype=np.float32)
        self._most: NDArray[np.float32] = np.zeros(fleet.capacity, dtype=np.float32)
        """Of the step of the last change."""
        self._step = 0
        """The number of that step, that is its beginning over ``STEP``."""

    def before_change(self, now: float) -> None:
        """To be called before ``own`` changes."""
        step = int(now / STEP)
        if step > self._step:
            self._begin(step)

    def grew(self, row: int) -> None:
        """To be called after ``own`` of a row has grown."""
        self._most[row] = max(self._most[row], self._fleet.own[row])

    def most(self, row: int, time: float, now: float) -> float:
        """The most that ``own`` was about ``time``: of a page that was asked for then, and came ``now``.

        When in between it was written is not known. With less than the most of that time own requests would
        be taken for others'. To a step, and not beyond the oldest remembered one.
        """
        oldest = self._step - _KEPT
        first = max(oldest, int(time / STEP))
        last = max(first, int(min(now, time + LONGEST_FETCH) / STEP))
        most = float(self._fleet.own[row]) if last > self._step else 0.0
        for step in range(first, min(last, self._step) + 1):
            then = self._most if step == self._step else self._ring[step % _KEPT]
            most = max(most, float(then[row]))
        return most

    def reset(self, rows: Rows) -> None:
        """The rows have new tenants; takes a grown fleet in."""
        more = self._fleet.capacity - self._ring.shape[1]
        if more:
            self._ring = np.concatenate([self._ring, np.zeros((_KEPT, more), dtype=np.float32)], axis=1)
            self._most = np.concatenate([self._most, np.zeros(more, dtype=np.float32)])
        self._ring[:, rows] = 0.0
        self._most[rows] = 0.0

    def _begin(self, step: int) -> None:
        self._ring[self._step % _KEPT] = self._most
        for missing in range(max(self._step + 1, step - _KEPT), step):
            self._ring[missing % _KEPT] = self._fleet.own
        self._most[:] = self._fleet.own
        self._step = step
