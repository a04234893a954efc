"""The soft half of the eligibility ladder: who should get a request, if anybody can be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scorer import filters

if TYPE_CHECKING:
    from scorer.contract import Filter, Request, Rows
    from scorer.fleet import Fleet

RUNGS: tuple[Filter, ...] = (
    filters.serves_path,  # would answer 404
    filters.reachable,  # would not answer
    filters.breaker_closed,  # would answer 5xx, as far as its last answers tell
    filters.not_draining,  # answers, but asked to be left alone
    filters.not_full,  # refused a moment ago; such a guess is over within seconds
)
"""From the gravest fault to the lightest."""


def eligible(fleet: Fleet, rows: Rows, request: Request, now: float) -> Rows:
    """The candidates that pass all rungs; failing that, those whose gravest fault is the lightest.

    Each rung narrows the candidates unless that would leave nobody, beginning with the gravest fault. So
    conditions are given up from the lightest on, and where everybody has the same fault (all full, all
    probes failing) nobody is excluded for it. Never empty for non-empty ``rows``.
    """
    for passes in RUNGS:
        mask = passes(fleet, rows, request, now)
        passing = np.count_nonzero(mask)
        if 0 < passing < len(rows):
            rows = rows[mask]
    return rows
