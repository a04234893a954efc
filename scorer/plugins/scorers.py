"""Scorers of the llm-d picker. Formulas and parameters are documented in docs/policies.md.

Sources: the plugins of the same names in llm-d-router 0.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scorer.fleet import MODEL_IN_USE, MODEL_WAITING
from scorer.plugins.columns import PerVersion, own_requests, said
from scorer.plugins.filters import IN_FLIGHT_PRODUCER, PREFIX_PRODUCER
from scorer.plugins.plugin import Plugin, PluginType, of_scorer

if TYPE_CHECKING:
    from scorer.contract import Request, Rows, Scores
    from scorer.document import Fields
    from scorer.fleet import Fleet
    from scorer.plugins.plugin import Means

WARM = 0.5
"""Score of everybody where somebody holds a part of the prompt, so that cold requests alone are spread."""


def queue_size(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores:
    """``(max - q) / (max - min)`` of the waiting requests; 1 for all where all are equal."""
    return _from_least_to_most(said(fleet.queue, fleet, rows, now), len(rows))


def running_requests(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores:
    """``(max - r) / (max - min)`` of the running requests; 1 for all where all are equal."""
    return _from_least_to_most(said(fleet.running, fleet, rows, now), len(rows))


def _from_least_to_most(counts: NDArray[np.float64] | None, size: int) -> Scores:
    if counts is None:
        return np.ones(size)
    least, most = counts.min(), counts.max()
    if least == most:
        return np.ones(size)
    scores: Scores = (most - counts) / (most - least)
    return scores


def free_kv_cache(fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores:
    """``1 - usage``."""
    usage = said(fleet.kv_usage, fleet, rows, now)
    if usage is None:
        return np.ones(len(rows))
    return np.maximum(1.0 - usage, 0.0)


@dataclass(frozen=True, slots=True)
class LoadAware:
    """0.5 without a queue, 0 from ``threshold`` waiting requests on."""

    threshold: float

    def __call__(self, fleet: Fleet, rows: Rows, _request: Request, now: float) -> Scores:
        """See :data:`scorer.contract.Scorer`."""
        queue = said(fleet.queue, fleet, rows, now)
        if queue is None:
            return np.full(len(rows), 0.5)
        return 0.5 * (1.0 - np.minimum(queue, self.threshold) / self.threshold)


def lora_affinity(fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores:
    """1 where the adapter is in use, 0.8 where a place is free, 0.6 where it is waited for, else 0."""
    state = fleet.holders(request.model)[rows]
    free = fleet.models_named[rows] < fleet.max_models[rows]  # False where the page does not say
    return np.select([state == MODEL_IN_USE, free, state == MODEL_WAITING], [1.0, 0.8, 0.6])


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """How much of the prompt the endpoint holds: as a share, and in tokens up to ``scale``."""

    length_weight: float
    scale: float

    def __call__(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores:
        """See :data:`scorer.contract.Scorer`."""
        if not request.prompt_tokens:
            return np.zeros(len(rows))
        matched = fleet.matched_tokens[rows]
        share = np.minimum(matched / request.prompt_tokens, 1.0)
        if not self.length_weight:
            return share
        length = np.minimum(matched / self.scale, 1.0)
        return self.length_weight * length * length + (1.0 - self.length_weight) * share


class NoHitLru:
    """For a prompt that nobody holds: who got such a one longest ago is first.

    Writes the fleet's column ``cold_at`` when a request is sent.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def sent(self, fleet: Fleet, row: int, request: Request, _now: float) -> None:  # noqa: ARG002 - as Sent
        """Number the requests of which nobody holds anything."""
        if not fleet.matched_tokens.any():
            fleet.cold_at[row] = fleet.cold_at.max() + 1.0

    def score(self, fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Scores:
        """See :data:`scorer.contract.Scorer`."""
        count = len(rows)
        if (fleet.matched_tokens[rows] > 0.0).any():
            return np.full(count, WARM)
        if count == 1:
            return np.ones(1)
        cold_at = fleet.cold_at[rows]
        if count > self._size:  # who is not among the last so many is forgotten
            cold_at = np.where(
                cold_at > np.partition(cold_at, -self._size - 1)[-self._size - 1], cold_at, -1.0
            )
        scores = np.empty(count)
        scores[cold_at.argsort(kind="stable")] = 1.0 - np.arange(count) / (count - 1)
        return scores


@dataclass(frozen=True, slots=True)
class TokenLoad:
    """1 without tokens to be computed there, this request's included, 0 from ``threshold`` on."""

    threshold: float

    def __call__(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores:
        """See :data:`scorer.contract.Scorer`."""
        uncached = np.maximum(request.prompt_tokens - fleet.matched_tokens[rows], 0.0)
        return 1.0 - np.minimum((fleet.own_tokens[rows] + uncached) / self.threshold, 1.0)


@dataclass(frozen=True, slots=True)
class ActiveRequests:
    """1 up to ``idle`` own requests, beyond these in proportion to what is missing to the busiest."""

    idle: float
    most_busy: float

    def __call__(self, fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Scores:
        """See :data:`scorer.contract.Scorer`."""
        requests = own_requests(fleet, rows)
        most = requests.max()
        if most <= self.idle:
            return np.ones(len(rows))
        return np.where(requests <= self.idle, 1.0, (most - requests) / most * self.most_busy)


class _Values(NamedTuple):
    """The values of a label by number, and each row's number (-1: it has none)."""

    numbers: dict[str, int]
    of_row: NDArray[np.int64]


class HeaderLabel:
    """1 where a label of the endpoint equals a header of the request."""

    def __init__(self, header: str, label: str) -> None:
        self._header = header
        self._label = label
        self._values = PerVersion(self._number)

    def score(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores:
        """See :data:`scorer.contract.Scorer`."""
        values = self._values.of(fleet)
        wanted = values.numbers.get(request.headers.get(self._header, ""))
        if wanted is None:
            return np.zeros(len(rows))
        scores: Scores = (values.of_row[rows] == wanted).astype(np.float64)
        return scores

    def _number(self, fleet: Fleet) -> _Values:
        values = _Values({}, np.full(fleet.capacity, -1, dtype=np.int64))
        for row in fleet.alive.nonzero()[0].tolist():
            value = fleet.labels[row].get(self._label)
            if value:
                values.of_row[row] = values.numbers.setdefault(value, len(values.numbers))
        return values


def _load_aware(fields: Fields, _means: Means) -> Plugin:
    return Plugin(score=LoadAware(fields.integer("threshold", 128, 1)))


def _prefix_cache(fields: Fields, _means: Means) -> Plugin:
    fields.reference("prefixMatchInfoProducerName", PREFIX_PRODUCER)
    scorer = PrefixCache(
        fields.number("matchLengthWeight", 0.0, 0.0, 1.0), fields.number("matchLengthScaleTokens", 8192, 1)
    )
    return Plugin(score=scorer, uses_prefix=True)


def _no_hit_lru(fields: Fields, _means: Means) -> Plugin:
    fields.reference("prefixMatchInfoProducerName", PREFIX_PRODUCER)
    fields.text("prefixPluginType")  # upstream never looked at these two
    fields.text("prefixPluginName")
    lru = NoHitLru(fields.integer("lruSize", 1024, 1))
    return Plugin(score=lru.score, sent=lru.sent, uses_prefix=True)


def _token_load(fields: Fields, _means: Means) -> Plugin:
    fields.reference("inFlightLoadProducerName", IN_FLIGHT_PRODUCER)
    fields.reference("prefixMatchInfoProducerName", PREFIX_PRODUCER)
    threshold = fields.number("queueThresholdTokens", 4_194_304, 1)
    return Plugin(score=TokenLoad(threshold), uses_prefix=True)


def _active_requests(fields: Fields, _means: Means) -> Plugin:
    fields.reference("inFlightLoadProducerName", IN_FLIGHT_PRODUCER)
    fields.text("requestTimeout")  # of no effect upstream, too
    idle = fields.integer("idleThreshold", 0)
    return Plugin(score=ActiveRequests(idle, fields.number("maxBusyScore", 1.0, 0.0, 1.0)))


def _header_label(fields: Fields, _means: Means) -> Plugin:
    scorer = HeaderLabel(fields.needed("headerName").lower(), fields.needed("labelKey"))
    return Plugin(score=scorer.score)


SCORERS = (
    of_scorer("queue-scorer", queue_size),
    of_scorer("kv-cache-utilization-scorer", free_kv_cache),
    of_scorer("running-requests-size-scorer", running_requests),
    PluginType("load-aware-scorer", _load_aware),
    of_scorer("lora-affinity-scorer", lora_affinity),
    PluginType("prefix-cache-scorer", _prefix_cache),
    PluginType("no-hit-lru-scorer", _no_hit_lru),
    PluginType("token-load-scorer", _token_load),
    PluginType("active-request-scorer", _active_requests),
    PluginType("header-label-affinity-scorer", _header_label),
)
