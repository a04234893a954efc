"""From total scores to one endpoint, or an ordered few.

All draws come from an injected :class:`random.Random`: a draw from it costs a fifth of a draw from
numpy's generators, and one number is all that a choice needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from random import Random

    from scorer.contract import Scores

TIE_TOLERANCE = 0.001
"""One request more at an endpoint that has 500 changes its score by 0.002, so up to there the
fuller one is never taken for equal."""


@dataclass(frozen=True, slots=True)
class NearTies:
    """Random among the candidates whose total is near the best one's.

    Formula: candidates with ``total >= best * (1 - tolerance)``, all with the same chance; repeated without
    those already taken for the places after the first.
    Reason: always taking the first of equals sends every new pool's first requests to the same endpoint,
    and several pickers that see the same pages all to one.
    When to use: where the totals rest on exact own numbers. The wider the tolerance, the further apart
    the endpoints drift.
    """

    tolerance: float = TIE_TOLERANCE

    def __call__(self, totals: Scores, count: int, rng: Random, prefer: int) -> list[int]:
        """See :class:`scorer.contract.Chooser`."""
        first = self._one(totals, rng, prefer)
        if count == 1:
            return [first]
        chosen = [first]
        left = totals.copy()
        while len(chosen) < min(count, len(totals)):
            left[chosen[-1]] = -1.0  # scores are never below 0
            chosen.append(self._one(left, rng, prefer))
        return chosen

    def _one(self, totals: Scores, rng: Random, prefer: int) -> int:
        floor = totals[totals.argmax()] * (1.0 - self.tolerance)
        if prefer >= 0 and totals[prefer] >= floor:
            return prefer
        ties = (totals >= floor).nonzero()[0]
        if len(ties) == 1:
            return int(ties[0])
        return int(ties[int(rng.random() * len(ties))])


def weighted_random(totals: Scores, count: int, rng: Random, prefer: int) -> list[int]:
    """Random over all candidates, each with a chance in proportion to its total.

    Formula: draws without replacement. ``prefer`` wins only where its total is the best.
    Reason: where totals rest on old or missing numbers, taking the best sends everything to the endpoint
    that merely looks idle.
    Fallback: uniform where all totals are 0.
    """
    left = totals.copy()
    chosen: list[int] = []
    if prefer >= 0 and totals[prefer] >= totals.max():
        chosen.append(prefer)
        left[prefer] = 0.0
    while len(chosen) < min(count, len(totals)):
        if not left.any():
            left[:] = 1.0
            left[chosen] = 0.0
        chosen.append(_draw(left, rng))
        left[chosen[-1]] = 0.0
    return chosen


def _draw(weights: Scores, rng: Random) -> int:
    """An index with a chance in proportion to its weight; never one of weight 0 unless all are."""
    steps = weights.cumsum()
    total = steps[-1]
    if total <= 0.0:
        return rng.randrange(len(weights))
    place = int(steps.searchsorted(rng.random() * total, side="right"))
    return place if place < len(weights) else int(np.flatnonzero(weights)[-1])  # rounding at the very end
