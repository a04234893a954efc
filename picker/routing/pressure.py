"""Endpoints that said they are full: left alone for a while, not taken for broken.

A Ray proxy whose queue is full refuses in milliseconds, so by requests in flight it looks idle and draws
everything (``full_until`` is what keeps the rest away). Writes the fleet's column ``full_until``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scorer.scorers import request_load

if TYPE_CHECKING:
    from scorer.fleet import Fleet, Slot

RETRY_AFTER = (0.05, 10.0)
"""Bounds in seconds of what an endpoint may ask for."""
FIRST_HOLD = 0.25
LONGEST_HOLD = 4.0
"""Seconds an endpoint that names no time is left alone, doubling while it refuses again right after."""
CLEARLY_LOWER = 0.75
"""A newer page with less than this share of the load at the refusal shows room."""


class _Refusal:
    """What is known of an endpoint since it last refused."""

    __slots__ = ("at", "hold", "load")

    def __init__(self) -> None:
        self.hold = 0.0
        self.at = 0.0
        self.load = 0.0


class BackPressure:
    """Which endpoints are full, and until when."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = fleet.version
        self._refusals: dict[Slot, _Refusal] = {}

    def sync(self) -> None:
        """Forget endpoints that are gone."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            self._refusals = {slot: r for slot, r in self._refusals.items() if self._fleet.holds(slot)}

    def refused(self, slot: Slot, sent_at: float, retry_after: float | None, now: float) -> None:
        """The endpoint refused a request for lack of room.

        Only the refusal of a request that was sent after the last hold was over lengthens the hold: a
        burst that was under way is refused as one.
        """
        self.sync()
        if not self._fleet.holds(slot):
            return
        refusal = self._refusals.setdefault(slot, _Refusal())
        until = float(self._fleet.full_until[slot.row])
        if refusal.hold == 0.0:
            refusal.hold = FIRST_HOLD
        elif sent_at >= until:
            refusal.hold = min(2 * refusal.hold, LONGEST_HOLD)
        wait = refusal.hold
        if retry_after is not None:
            low, high = RETRY_AFTER
            wait = min(max(low, retry_after), high)
        refusal.at = now
        refusal.load = float(request_load(self._fleet, np.array([slot.row]), now)[0])
        self._fleet.full_until[slot.row] = max(until, now + wait)

    def succeeded(self, slot: Slot, sent_at: float) -> None:
        """The endpoint took a request. If that was sent after the refusal, there is room again.

        One sent before only frees the place it had, for which others wait.
        """
        refusal = self._refusals.get(slot)
        if refusal is not None and sent_at >= refusal.at:
            self._clear(slot)

    def page_read(self, slot: Slot, page_time: float) -> None:
        """A page was read; one that is newer than the refusal may show room."""
        refusal = self._refusals.get(slot)
        if refusal is None or not self._fleet.holds(slot) or page_time <= refusal.at:
            return
        if self._fleet.scraped_load[slot.row] < CLEARLY_LOWER * refusal.load:  # False for NaN
            self._clear(slot)

    def _clear(self, slot: Slot) -> None:
        del self._refusals[slot]
        if self._fleet.holds(slot):
            self._fleet.full_until[slot.row] = -np.inf
