"""The soft half of the eligibility ladder: who should get a request, if anybody can be had."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scorer import filters
from scorer.fleet import any_true

if TYPE_CHECKING:
    from collections.abc import Callable

    from scorer.contract import Filter, Request, Rows
    from scorer.fleet import Fleet
    from scorer.profile import Dropped


class Rung(NamedTuple):
    """A condition, and whether to look at it: it costs much less to see that nobody has its fault."""

    name: str
    passes: Filter
    faulty: Callable[[Fleet, Request, float], bool]


RUNGS = (
    # would answer 404
    Rung(
        "serves-path",
        filters.serves_path,
        lambda fleet, request, _now: not filters.served_everywhere(fleet, request),
    ),
    # would not answer
    Rung("reachable", filters.reachable, lambda fleet, _request, _now: b"\0" in fleet.reachable.tobytes()),
    # would answer 5xx, as far as its last answers tell
    Rung(
        "breaker-closed", filters.breaker_closed, lambda fleet, _request, _now: any_true(fleet.breaker_open)
    ),
    # answers, but asked to be left alone
    Rung("not-draining", filters.not_draining, lambda fleet, _request, _now: any_true(fleet.draining)),
    # refused a moment ago; such a guess is over within seconds
    Rung("not-full", filters.not_full, lambda fleet, _request, now: any_true(fleet.full_until > now)),
)
"""From the gravest fault to the lightest. Rows without a tenant have none."""


def eligible(fleet: Fleet, rows: Rows, request: Request, now: float, dropped: list[Dropped]) -> Rows:
    """The candidates that pass all rungs; failing that, those whose gravest fault is the lightest.

    Each rung narrows the candidates unless that would leave nobody, beginning with the gravest fault. So
    conditions are given up from the lightest on, and where everybody has the same fault (all full, all
    probes failing) nobody is excluded for it. Never empty for non-empty ``rows``. Who is taken out is added
    to ``dropped``.
    """
    for name, passes, faulty in RUNGS:
        if not faulty(fleet, request, now):
            continue
        mask = passes(fleet, rows, request, now)
        passing = np.count_nonzero(mask)
        if 0 < passing < len(rows):
            dropped.append((name, rows[~mask]))
            rows = rows[mask]
    return rows
