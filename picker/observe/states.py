"""The one word that says how an endpoint is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scorer.fleet import Fleet

STATES = ("unreachable", "breaker_open", "draining", "full", "eligible")
"""An endpoint is in the first of these that holds for it, so that the states add up to the pool."""


def states(fleet: Fleet, rows: NDArray[np.intp], now: float) -> NDArray[np.intp]:
    """The index into ``STATES`` of each row."""
    conditions = [
        ~fleet.reachable[rows],
        fleet.breaker_open[rows],
        fleet.draining[rows],
        fleet.full_until[rows] > now,
    ]
    return np.select(conditions, range(len(conditions)), default=len(conditions))
