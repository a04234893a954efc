"""Which endpoints may get a request: masks over the candidates, True where one may stay.

None of these decides what happens when nobody may stay; that is the caller's ladder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scorer.contract import Mask, Request, Rows
    from scorer.fleet import Fleet


def serves_path(fleet: Fleet, rows: Rows, request: Request, _now: float) -> Mask:
    """Endpoints one of whose route prefixes covers the request's path.

    Formula: as Ray Serve matches: a prefix covers itself and everything below it (``/app`` covers
    ``/app`` and ``/app/x``, not ``/apple``); ``/`` covers all. Evaluated once per distinct set of
    prefixes, not per endpoint.
    Reason: a Ray proxy answers 404 for an application it does not know, at once, and would look idle.
    Fallback: unknown routes (an endpoint that never told, or a request without a path) pass.
    """
    if not fleet.route_sets or not request.path:
        return np.ones(len(rows), dtype=np.bool_)
    covered = [_covers(prefixes, request.path) for prefixes in fleet.route_sets]
    covered.append(True)  # UNKNOWN_ROUTES is -1 and so reads the last element
    return np.array(covered, dtype=np.bool_)[fleet.route_set[rows]]


def served_everywhere(fleet: Fleet, request: Request) -> bool:
    """Whether :func:`serves_path` lets everybody pass, seen without looking at each."""
    path = request.path
    return not fleet.paths_differ or not path or all(_covers(prefixes, path) for prefixes in fleet.route_sets)


def _covers(prefixes: tuple[str, ...], path: str) -> bool:
    return path.startswith(prefixes) and any(
        path.startswith(prefix)
        and (prefix.endswith("/") or len(path) == len(prefix) or path[len(prefix)] == "/")
        for prefix in prefixes
    )


def reachable(fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Mask:
    """Endpoints whose probes do not fail repeatedly.

    Reason: a probe notices a dead host without costing a request.
    Fallback: an endpoint that is not probed counts as reachable.
    """
    return fleet.reachable[rows]


def breaker_closed(fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Mask:
    """Endpoints whose own answers were not clearly worse than the pool's (routing's breaker)."""
    return ~fleet.breaker_open[rows]


def not_draining(fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Mask:
    """Endpoints that do not ask to be left without new requests.

    Reason: a draining Ray proxy still answers, but its replicas may stop under a long request.
    """
    return ~fleet.draining[rows]


def not_full(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Mask:
    """Endpoints that did not refuse for lack of room, or whose refusal is over.

    Reason: a proxy that refuses answers in milliseconds, so any count of requests in flight finds it idle.
    """
    return fleet.full_until[rows] <= now
