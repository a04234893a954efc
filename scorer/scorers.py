"""How good an endpoint is for a request: a number from 0 to 1 for each candidate.

The scores here have one form, ``(min + 1) / (x + 1)`` over some count ``x`` of work: the least loaded
candidate gets 1, twice the work gets about a half, and a difference of one counts much among idle
endpoints and little among busy ones. A fixed scale ("full at 128") would have to fit both a replica
with five slots and an engine with five hundred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scorer.contract import Request, Rows, Scores
    from scorer.fleet import Fleet

TRUSTED_AGE = 5.0
"""Seconds. A page up to this age counts in full: a Ray page is fetched once a second and a few
fetches may fail in a row without the load of other clients having become a different one."""

IGNORED_AGE = 30.0
"""Seconds. A page of this age says nothing any more: most requests it counted have ended. Between the
two its weight falls linearly, so that no endpoint's load jumps when its page is lost."""


def freshness(fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64]:
    """How much each endpoint's page is still worth: 1 up to ``TRUSTED_AGE``, 0 from ``IGNORED_AGE``."""
    worth: NDArray[np.float64] = (now - IGNORED_AGE - fleet.fetched_at[rows]) / (TRUSTED_AGE - IGNORED_AGE)
    np.minimum(worth, 1.0, out=worth)
    np.maximum(worth, 0.0, out=worth)
    return worth


def request_load(fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64]:
    """Requests at each endpoint, own and others'.

    Formula: ``own + untracked + freshness * max(0, scraped - own_at_page)``, never below own, with
    :func:`freshness`.
    Reason: own numbers are exact and immediate, a page is seconds old and has own requests in it; what
    it shows beyond those at its time is other clients' load.
    Fallback: a page that does not say a load, or was never read, adds nothing.
    """
    others = np.fmax(fleet.scraped_load[rows] - fleet.own_at_page[rows], 0.0)  # fmax: NaN becomes 0
    load: NDArray[np.float64] = fleet.own[rows] + fleet.untracked[rows] + freshness(fleet, rows, now) * others
    return load


def least_load(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores:
    """Fewest requests first.

    Formula: ``(min + 1) / (load + 1)`` of :func:`request_load`.
    Reason: with one kind of request the shortest line is the shortest wait.
    Fallback: without pages it is least own requests, as a proxy's own least-request balancing.
    """
    return _less_is_better(request_load(fleet, rows, now))


def token_load(fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores:
    """Fewest prompt tokens ahead of the first new token.

    Formula: ``(min + 1) / (tokens + 1)``, tokens = those sent whose first answer is still to come, plus
    this request's.
    Reason: prefill takes time in proportion to tokens, and one long prompt delays more than ten short ones.
    Adding the request's own tokens makes what waits matter less the longer this prompt takes anyway.
    Fallback: 1 for all where nobody has tokens.
    """
    return _less_is_better(fleet.own_tokens[rows] + float(request.prompt_tokens))


def local_load(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores:
    """Least busy replicas on the endpoint's own node.

    Formula: ``(min + 1) / (local_running + 1)``.
    Reason: a Ray proxy tries a replica of its own node first; a busy one costs a hop to another node.
    Fallback: an endpoint that does not say, or whose page is older than ``IGNORED_AGE``, counts as the
    mean of those that do; 1 for all where nobody does.
    """
    running = fleet.local_running[rows]
    known = (running >= 0.0) & (fleet.fetched_at[rows] > now - IGNORED_AGE)  # NaN >= 0 is False
    said = int(np.count_nonzero(known))
    if said == 0:
        return np.ones(len(rows))
    if said < len(rows):
        running = np.where(known, running, running[known].mean())
    return _less_is_better(running)


def _less_is_better(work: NDArray[np.float64]) -> Scores:
    work = work + 1.0
    scores: Scores = work.min() / work
    return scores
