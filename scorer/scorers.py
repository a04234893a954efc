"""How good an endpoint is for a request: a number from 0 to 1 for each candidate.

The scores here have one form, the least cost over each one's cost: the best candidate gets 1, twice the
cost a half. So a difference of one counts much among idle endpoints and little among busy ones, where a
fixed scale ("full at 128") would have to fit both a replica with five slots and an engine with five hundred.
A scorer that cannot tell the candidates apart gives None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scorer.fleet import any_true

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

PAGE_WORTH = 0.75
"""How much what a page shows of other pickers' prompts counts at most against the guess that they send as
this one does: it does not show what came since, nor how long the prompts are."""

STEP_TOKENS = 16.0
"""Tokens that every request counts for, be its prompt cached or short: an engine's block. Without them a
prompt of which all is cached would cost nothing, however long the line."""

LOST = 1.0
"""How much a token that is cached elsewhere counts beside its own computing. Simulated with 0 to 3: with less
prompts are computed anew that had a place, with more, who holds most is crowded.
"""

KV_EASE = 0.8
"""Used share of the KV cache up to which it is no hindrance."""
KV_FULL = 0.98
"""Used share from which it is the same hindrance: the cost of full has to be finite."""
KV_BARRIER = 0.1
"""How steeply the cost rises between the two: 1.5 times at 0.9, 2.5 at 0.95, 5.5 at 0.98."""

LOCAL_SHARE = 0.1
"""How much a request at the replicas of a proxy's own node counts against one of its own."""


def freshness(fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64] | float:
    """How much each endpoint's page is still worth: 1 up to ``TRUSTED_AGE``, 0 from ``IGNORED_AGE``.

    Where all are worth 1, as they are nearly always, it is just that number.
    """
    worth: NDArray[np.float64] = fleet.fetched_at[rows]
    if worth[worth.argmin()] >= now - TRUSTED_AGE:
        return 1.0
    worth += IGNORED_AGE - now
    worth *= 1.0 / (IGNORED_AGE - TRUSTED_AGE)
    np.minimum(worth, 1.0, out=worth)
    np.maximum(worth, 0.0, out=worth)
    return worth


def request_load(fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64]:
    """Requests at each endpoint, own and others'.

    Formula: ``own + untracked + freshness * others + (1 - freshness) * guess``, never below own, where
    ``others = max(0, scraped - own_at_page)``, with :func:`freshness`; ``guess = (replicas - 1) * own`` is
    what as many other pickers as there are will have sent.
    Reason: own numbers are exact and immediate, a page is seconds old and has own requests in it; what
    it shows beyond those at its time is other clients' load.
    Fallback: a page that does not say a load, or was never read, adds nothing but the guess.
    """
    own: NDArray[np.float64] = fleet.own[rows]
    load = fleet.scraped_load[rows]
    load -= fleet.own_at_page[rows]
    np.fmax(load, 0.0, out=load)  # NaN becomes 0
    worth = freshness(fleet, rows, now)
    if not isinstance(worth, float):
        load *= worth
        if fleet.replicas > 1:
            load += (1.0 - worth) * (fleet.replicas - 1) * own
    load += own
    load += fleet.untracked[rows]
    return load


def waiting_tokens(fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64]:
    """Uncached prompt tokens before each endpoint whose first answer is still to come.

    Formula: ``own + worth * seen + (1 - worth) * (replicas - 1) * own``, with ``worth`` = 0.75 of the page's
    freshness; for a single picker just ``own``. ``seen = queue * others / scraped * mean``: of the requests
    that wait there by the page the share that is not ours, each with as many uncached tokens as a
    request of ours has on average.
    Reason: own tokens are exact, but with four pickers a quarter of all: times four they are mostly noise,
    while a page shows who waits, if not how long their prompts are. Simulated, four pickers, eight engines:
    TTFT p90 of Mooncake's conversations 852 to 750 ms, of 118 sessions of agents 302 to 258.
    Fallback: where a page says no queue it is ``replicas * own``.
    """
    own: NDArray[np.float64] = fleet.own_tokens[rows]
    if fleet.replicas == 1:
        return own
    scraped = fleet.scraped_load[rows]
    seen: NDArray[np.float64] = np.fmax(scraped - fleet.own_at_page[rows], 0.0)
    seen *= fleet.queue[rows] * (fleet.mean_tokens / np.fmax(scraped, 1.0))
    worth = PAGE_WORTH * freshness(fleet, rows, now)
    unsaid = np.isnan(seen)
    if any_true(unsaid):
        worth = np.where(unsaid, 0.0, worth)
        seen[unsaid] = 0.0
    seen *= worth
    seen += own * (1.0 + (fleet.replicas - 1) * (1.0 - worth))
    return seen


def least_load(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores:
    """Fewest requests first.

    Formula: ``(min + 1) / (load + 1)`` of :func:`request_load`.
    Reason: with one kind of request the shortest line is the shortest wait.
    Fallback: without pages it is least own requests, as a proxy's own least-request balancing.
    """
    load = request_load(fleet, rows, now)
    load += 1.0
    return _less_is_better(load)


def least_work(fleet: Fleet, rows: Rows, request: Request, now: float) -> Scores | None:
    """Fewest prompt tokens to compute before this request's answer begins, among the fewest requests.

    Formula: ``cost = (waiting + new + lost + 16) * sqrt(load + 1) * slowness * barrier``; the score is
    the least cost over the cost.
    * ``waiting``: uncached prompt tokens sent there whose first answer is still to come, by the ledger,
      and what other pickers may have sent (:func:`waiting_tokens`); ``new``: this prompt's tokens less
      those whose prefix is there.
    * ``lost``: how many more of its tokens are where most are. Computed anew they take the room of others,
      which will have to be computed anew in their turn, and the next request that begins alike has two
      places, neither with all of it. That is what holds the hit rate where caches are full (simulated with
      0, 1 and 2: 120 sessions of agents 85, 88 and 89 %, TTFT p90 156, 152 and 155 ms; Mooncake's
      conversations at 12 times their rate 12, 14 and 14 %, 650, 584 and 588 ms); without reuse it is 0.
    * ``load``: :func:`request_load`, since every one that decodes takes its part of each step. The root,
      because a step for twenty takes hardly longer than a step for one.
    * ``slowness`` as learned: a slow engine gets less, and a prompt leaves it for where it has to be
      computed anew but sooner.
    * ``barrier = 1 + 0.1 * max(0, k / (1 - k) - 4)`` for the used share ``k`` of the KV cache, as far as its
      page is fresh. An engine without room stops work that it has to do again, so the cost climbs
      steeply at the end; below 0.8 it is free of cost, so that an old page makes nobody attractive.
    Reason: prefill takes time in proportion to *uncached* tokens, and nobody else knows them as exactly and
    as soon as who sent them (``facts``: 1.7 times lower TTFT p90 than a blend of queue, KV use and prefix
    on a trace with reuse, and not behind least request without).
    Fallback: without pages own numbers alone; where no tokens are known (nobody has any, and the request
    tells none) it is :func:`least_load`; before proxies, which compute no prompts, it says nothing.
    Sources: LMetric (arXiv 2603.15202) has new tokens times batch; the barrier is SMG's, there in seconds.
    """
    if fleet.has_proxies:
        return None
    work = waiting_tokens(fleet, rows, now)
    tokens = request.prompt_tokens
    if not tokens and not np.count_nonzero(work):
        return least_load(fleet, rows, request, now)
    matched = fleet.matched_tokens[rows]
    work += tokens + STEP_TOKENS + LOST * matched[matched.argmax()]
    matched *= 1.0 + LOST
    work -= matched
    load = request_load(fleet, rows, now)
    load += 1.0
    work *= np.sqrt(load, out=load)
    work *= fleet.slowness[rows]
    used = fleet.kv_usage[rows]
    if any_true(used > KV_EASE):  # False for NaN
        work *= _kv_barrier(used, freshness(fleet, rows, now))
    return _less_is_better(work)


def _kv_barrier(used: NDArray[np.float64], worth: NDArray[np.float64] | float) -> NDArray[np.float64]:
    used = np.fmin(np.fmax(used, KV_EASE), KV_FULL)  # NaN becomes KV_EASE
    barrier: NDArray[np.float64] = 1.0 + worth * KV_BARRIER * (
        used / (1.0 - used) - KV_EASE / (1.0 - KV_EASE)
    )
    return barrier


def ray_load(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores | None:
    """Fewest requests at a Ray Serve proxy, those that wait counting twice, with idle replicas next to it.

    Formula: ``(min + 1) / (x + 1)``, ``x = load + freshness * waiting + 0.1 * local``, with
    :func:`request_load` and ``local`` = requests at the replicas of the proxy's own node. Where the page
    shows a queue, ``waiting = max(0, load - (scraped - queue))``: what is there now beyond what was worked on
    then, so that a queue that own numbers say is gone does not count on until the next page.
    Reason: a proxy's queue is bounded and its own, and what stands in it found no replica free anywhere; a
    proxy tries a replica of its own node first, where a busy one costs a hop to another. The latter is of
    a page up to ten seconds old and other proxies use the same replicas, so it only decides between like
    ones. Fallback: an endpoint that does not say its local load, or whose page is older than
    ``IGNORED_AGE``, counts as the mean of those that do. Where nobody is a proxy it says nothing.
    """
    if not fleet.has_proxies:
        return None
    load = request_load(fleet, rows, now)
    load += freshness(fleet, rows, now) * _waiting(fleet, rows, load)
    load += _local_load(fleet, rows, now) * LOCAL_SHARE
    load += 1.0
    return _less_is_better(load)


def _waiting(fleet: Fleet, rows: Rows, load: NDArray[np.float64]) -> NDArray[np.float64]:
    queue = fleet.queue[rows]
    waiting: NDArray[np.float64] = np.fmax(load - (fleet.scraped_load[rows] - queue), 0.0)
    waiting[~(queue > 0.0)] = 0.0  # NaN too
    return waiting


def _local_load(fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64] | float:
    running: NDArray[np.float64] = fleet.local_running[rows]
    known = (running >= 0.0) & (fleet.fetched_at[rows] > now - IGNORED_AGE)  # NaN >= 0 is False
    said = int(np.count_nonzero(known))
    if said == 0:
        return 0.0
    if said < len(rows):
        running[~known] = running[known].mean()
    return running


def _less_is_better(cost: NDArray[np.float64]) -> Scores:
    scores: Scores = cost[cost.argmin()] / cost
    return scores
