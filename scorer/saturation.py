"""How full each endpoint is: 1 where it has no room for requests that may wait.

The formulas are those of the reference picker, with two differences: what is missing or old counts as
room, since nothing is refused because numbers are old; and a proxy's queue has no depth to be filled, for
requests wait there only while none of the servers behind it is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scorer.scorers import freshness

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scorer.contract import Rows
    from scorer.fleet import Fleet

FULL_QUEUE = 5.0
"""Waiting requests at which a model server counts as saturated."""
FULL_KV_CACHE = 0.8
"""Used share of the KV cache at which it does."""


class Saturation(Protocol):
    """A way to tell how full endpoints are."""

    def __call__(self, fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64]:
        """For each of ``rows`` a number of 0 or more; 1 is full."""


@dataclass(frozen=True, slots=True)
class Utilization:
    """By the endpoints' pages.

    Formula: ``freshness * max(queue / full_queue, kv_usage / full_kv_cache)``; for a proxy
    ``freshness * min(queue, 1)``. What is not said is 0.
    """

    full_queue: float = FULL_QUEUE
    full_kv_cache: float = FULL_KV_CACHE

    def __str__(self) -> str:
        """For people."""
        return f"{self.full_queue:g} waiting requests or {self.full_kv_cache:.0%} of the KV cache"

    def __call__(self, fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64]:
        """See :class:`Saturation`."""
        queue = fleet.queue[rows]
        server = np.fmax(queue / self.full_queue, fleet.kv_usage[rows] / self.full_kv_cache)  # leaves NaN out
        each = np.where(fleet.proxy[rows], np.minimum(queue, 1.0), server)
        saturation: NDArray[np.float64] = freshness(fleet, rows, now) * np.fmax(each, 0.0)
        return saturation


@dataclass(frozen=True, slots=True)
class Concurrency:
    """By our own requests in flight, tokens whose prefill is to come, or the greater share of the two.

    Formula: ``requests / most_requests``, ``tokens / most_tokens``, or the maximum of both. A limit of 0 is
    not looked at.
    """

    most_requests: float = 0.0
    most_tokens: float = 0.0

    def __str__(self) -> str:
        """For people."""
        limits = ((self.most_requests, "requests"), (self.most_tokens, "tokens"))
        return " or ".join(f"{most:g} {what} in flight" for most, what in limits if most)

    def __call__(self, fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64]:  # noqa: ARG002 - as asked
        """See :class:`Saturation`."""
        saturation = np.zeros(len(rows))
        if self.most_requests:
            saturation = (fleet.own[rows] + fleet.untracked[rows]) / self.most_requests
        if self.most_tokens:
            saturation = np.maximum(saturation, fleet.own_tokens[rows] / self.most_tokens)
        return saturation
