"""Where a trace's load begins to be too much."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING

from picker.replay.policies import ROUND_ROBIN, PolicyName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from picker.replay.cases import Case
    from picker.replay.result import Result

TIMES_WORSE = 5.0
A_FIFTH = 5.0
"""At the knee the 90th percentile of the time to first token is so many times that at a fifth of the load."""
_CLOSE = 1.03
"""Two levels this near to each other are the same."""
_LIGHT = 1 / 32
"""Of what the servers could compute, were there no bursts, no answers and no cache."""
_LEAST = 1 / 64
_MOST = 256
"""Bounds of the search, in parts of the load it begins with. The upper is more than servers can do."""
_P90 = 1


class KneeError(Exception):
    """No load is too much: the runs are so short that they are over before anybody has to wait long."""


def find_knee(case: Case, seeds: Sequence[int], run: Callable[[list[Case]], list[Result]]) -> float:
    """The highest level at which round robin's TTFT p90 is at most five times its value at a fifth of it.

    The p90 is the mean of those of all seeds. Faults, pages and replicas are left out: round robin sees none
    of them. ``run`` runs cases side by side. Raises KneeError.
    """
    plain = replace(case, policy=PolicyName(ROUND_ROBIN), faults=(), replicas=1, explain=None)

    def p90(level: float) -> float:
        results = run([replace(plain.at_level(level), seed=seed) for seed in seeds])
        return fmean(result.ttft[_P90] for result in results)

    def bearable(level: float) -> bool:
        loaded, light = p90(level), p90(level / A_FIFTH)
        return not isnan(loaded) and loaded <= TIMES_WORSE * light

    # From below: far beyond the knee a fifth of the load is too much as well, and no worse.
    begin = low = _light(case)
    while not bearable(low) and low > _LEAST * begin:
        low /= 2
    high = 2 * low
    while bearable(high):
        low, high = high, 2 * high
        if high > _MOST * begin:
            trace = case.source.read().name
            raise KneeError(f"{trace}: {case.sent} requests are too few to find a knee; play more of them")
    return _narrow(low, high, bearable, whole=bool(case.sessions))


def _narrow(low: float, high: float, bearable: Callable[[float], bool], *, whole: bool) -> float:
    while high / low > _CLOSE and not (whole and high - low <= 1.0):
        middle = (low * high) ** 0.5
        if bearable(middle):
            low = middle
        else:
            high = middle
    return float(round(low)) if whole else low


def _light(case: Case) -> float:
    """A load that is light for all but the worst of bursts."""
    trace = case.source.read()
    if trace.sessions:
        return max(1.0, case.endpoints / 4)
    tokens = fmean(request.prompt for request in trace.requests)
    return _LIGHT * case.endpoints * case.model.prefill_rate / (tokens * trace.requests_per_second)
