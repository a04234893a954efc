"""The soft half of the eligibility ladder: who should get a request, if anybody can be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scorer import filters
from scorer.fleet import any_true
from scorer.profile import NamedFilter

if TYPE_CHECKING:
    from scorer.contract import Request, Rows
    from scorer.fleet import Fleet
    from scorer.profile import Dropped

RUNGS = (
    # would answer 404
    NamedFilter("serves-path", filters.serves_path),
    # would not answer
    NamedFilter("reachable", filters.reachable),
    # would answer 5xx, as far as its last answers tell
    NamedFilter("breaker-closed", filters.breaker_closed),
    # answers, but asked to be left alone
    NamedFilter("not-draining", filters.not_draining),
    # refused a moment ago; such a guess is over within seconds
    NamedFilter("not-full", filters.not_full),
)
"""From the gravest fault to the lightest. Rows without a tenant have none."""


def eligible(fleet: Fleet, rows: Rows, request: Request, now: float, dropped: list[Dropped]) -> Rows:
    """The candidates that pass all rungs; failing that, those whose gravest fault is the lightest.

    Each rung narrows the candidates unless that would leave nobody, beginning with the gravest fault. So
    conditions are given up from the lightest on, and where everybody has the same fault (all full, all
    probes failing) nobody is excluded for it. Never empty for non-empty ``rows``. Who is taken out is added
    to ``dropped``.
    """
    if _faultless(fleet, request, now):
        return rows
    for name, passes in RUNGS:
        mask = passes(fleet, rows, request, now)
        passing = np.count_nonzero(mask)
        if 0 < passing < len(rows):
            dropped.append((name, rows[~mask]))
            rows = rows[mask]
    return rows


def _faultless(fleet: Fleet, request: Request, now: float) -> bool:
    """Whether nobody has any fault, which mostly is so, and costs much less to see than whose."""
    return (
        b"\0" not in fleet.reachable.tobytes()
        and not any_true(fleet.breaker_open)
        and not any_true(fleet.draining)
        and not any_true(fleet.full_until > now)
        and filters.served_everywhere(fleet, request)
    )
