"""How long endpoints take for the same work, compared with each other.

Writes the fleet's column ``slowness``. One endpoint may have an older card, a noisy neighbour or a
throttled one; its queue alone tells that late, and prefixes that are cached there would hold requests to it.
"""

from __future__ import annotations

from math import exp
from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scorer.fleet import Fleet, Slot

CLEARLY_SLOWER = 1.3
"""Times as long as the middle endpoint; what is below is noise and counts as equal."""
MOST = 10.0
FIRST_TOKEN_OVERHEAD = 256.0
"""Tokens that could be computed in what a first token takes beside its prompt: one full step."""
TELLING_TOKENS = 256.0
"""With fewer tokens ahead, the time to the first one is mostly overhead and tells no speed."""
FULL_SAMPLE = 2048.0
"""Tokens ahead with which one first token counts as a sample of weight 1."""
END_SAMPLE = 1 / 16
"""Weight of an end: mostly it tells how long the answer was."""
END_OVERHEAD = 0.05
"""Seconds added to each end. An answer of milliseconds takes thrice as long when a machine is busy with
something else for a moment; only of long ones the time is the server's speed."""
MEMORY = 10.0
"""Seconds after which a sample counts 1/e as much; so an endpoint that gets no more requests because it was
slow is tried again after less than a minute."""
_PRIOR = 1.0
"""Weight of the assumption that it is like the middle one."""
_MOST_WEIGHT = 16.0
_INTERVAL = 0.5
"""Seconds between two comparisons."""


class _Tally:
    """Times taken per work, weighted; older ones count less. In any unit: only proportions are used."""

    __slots__ = ("at", "ratios", "weight")

    def __init__(self, at: float) -> None:
        self.at = at
        self.ratios = self.weight = 0.0

    def add(self, ratio: float, weight: float, now: float) -> None:
        self.fade(now)
        self.ratios += ratio * weight
        self.weight += weight
        if self.weight > _MOST_WEIGHT:
            self.ratios *= _MOST_WEIGHT / self.weight
            self.weight = _MOST_WEIGHT

    def fade(self, now: float) -> None:
        factor = exp((self.at - now) / MEMORY)
        self.ratios *= factor
        self.weight *= factor
        self.at = now


class _Comparison:
    """Endpoints by samples of one kind."""

    def __init__(self) -> None:
        self.tallies: dict[Slot, _Tally] = {}

    def add(self, slot: Slot, ratio: float, weight: float, now: float) -> None:
        tally = self.tallies.get(slot)
        if tally is None:
            tally = self.tallies[slot] = _Tally(now)
        tally.add(ratio, weight, now)

    def slow_ones(self, now: float) -> dict[Slot, float]:
        """How many times longer than the middle one each takes that takes clearly longer."""
        for tally in self.tallies.values():
            tally.fade(now)
        known = [tally.ratios / tally.weight for tally in self.tallies.values() if tally.weight >= _PRIOR]
        if len(known) < 2:  # noqa: PLR2004 - nothing to compare
            return {}
        middle = median_low(known)
        slow = {}
        for slot, tally in self.tallies.items():
            slowness = (tally.ratios / middle + _PRIOR) / (tally.weight + _PRIOR)
            if slowness >= CLEARLY_SLOWER:
                slow[slot] = min(slowness, MOST)
        return slow


class Speeds:
    """Of all endpoints of a pool: by first tokens, and by ends where first tokens are out of sight."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = fleet.version
        self._by_first_tokens = _Comparison()
        self._by_ends = _Comparison()
        self._compared_at = 0.0
        self._slow: dict[Slot, float] = {}

    def sync(self) -> None:
        """Forget endpoints that are gone."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            for kind in (self._by_first_tokens, self._by_ends):
                for slot in [slot for slot in kind.tallies if not self._fleet.holds(slot)]:
                    del kind.tallies[slot]

    def first_token(self, slot: Slot, ahead: float, took: float, now: float) -> None:
        """The first token came ``took`` seconds after its request was sent, behind ``ahead`` tokens."""
        if ahead >= TELLING_TOKENS:
            per_token = took / (ahead + FIRST_TOKEN_OVERHEAD)
            self._by_first_tokens.add(slot, per_token, min(1.0, ahead / FULL_SAMPLE), now)

    def ended(self, slot: Slot, took: float, now: float) -> None:
        """A whole answer took so many seconds, and its first token was out of sight."""
        self._by_ends.add(slot, took + END_OVERHEAD, END_SAMPLE, now)

    def compare(self, now: float) -> None:
        """Write the column, if it is time."""
        if now < self._compared_at + _INTERVAL:
            return
        self._compared_at = now
        slow = self._by_ends.slow_ones(now) | self._by_first_tokens.slow_ones(now)
        for slot in self._slow.keys() - slow.keys():
            if self._fleet.holds(slot):
                self._fleet.slowness[slot.row] = 1.0
        for slot, times in slow.items():
            self._fleet.slowness[slot.row] = times
        self._slow = slow
