"""Whether the pool has room for requests that may be shed.

The formula is that of the reference picker, with two differences: a page that is missing or old counts
as room, since nothing is refused because numbers are old; and a proxy's queue has no depth to be filled,
for requests wait there only while none of the servers behind it is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scorer.scorers import freshness

if TYPE_CHECKING:
    from scorer.contract import Rows
    from scorer.fleet import Fleet

FULL_QUEUE = 5.0
"""Waiting requests at which a model server counts as saturated."""
FULL_KV_CACHE = 0.8
"""Used share of the KV cache at which it does."""


def saturated(fleet: Fleet, rows: Rows, now: float) -> bool:
    """Whether the mean saturation of the endpoints is 1 or more.

    Formula, for each: ``freshness * max(queue / 5, kv_usage / 0.8)``; for a proxy ``freshness *
    min(queue, 1)``, so that a pool of proxies is saturated when each has a queue. What is not said is 0.
    """
    queue = fleet.queue[rows]
    server = np.fmax(queue / FULL_QUEUE, fleet.kv_usage[rows] / FULL_KV_CACHE)  # fmax: leaves NaN out
    each = np.where(fleet.proxy[rows], np.minimum(queue, 1.0), server)
    return bool((freshness(fleet, rows, now) * np.fmax(each, 0.0)).mean() >= 1.0)
