"""What the picker tells about itself on its own metrics page. Its own names begin with ``picker_``.

The hot path counts in plain numbers, or touches only children that were bound to their labels
beforehand. What can be read off the fleet is read when a page is asked for, never kept twice. Label
values are bounded: endpoints come from the pool and at most :data:`MOST_ENDPOINTS` get series of their
own; reasons are a first few, the rest is ``other``.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from picker.observe.states import STATES, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray
    from prometheus_client import Metric

    from scorer.fleet import Fleet

MOST_ENDPOINTS = 128
"""Endpoints with series of their own. One family of many more would hold up the event loop for too long."""
MOST_REASONS = 32
"""Distinct values of one label, before the rest is counted as ``other``."""

DECISION_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.25)
_SCHEDULER_BUCKETS = frozenset(
    (*map(str, (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)), "+Inf")
)
_SCRAPE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_M = TypeVar("_M", bound=MetricWrapperBase)


class _Bound(Generic[_M]):
    """The children of a metric with one label, each looked up by a plain dictionary."""

    def __init__(self, metric: _M, *known: str) -> None:
        self.metric = metric
        self._other = metric.labels("other")
        self._children = {value: metric.labels(value) for value in known}

    def __getitem__(self, value: str) -> _M:
        child = self._children.get(value)
        if child is None:
            if len(self._children) >= MOST_REASONS:
                return self._other
            child = self._children[value] = self.metric.labels(value)
        return child


class Metrics:
    """Counts what happens, and describes the fleet as it is when asked.

    ``clock`` is the one the fleet's times are of: that of the event loop.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        registry.register(_FleetCollector(fleet, clock))
        # Of every request, so plain numbers: the library's take a lock and several calls each.
        self._opened = self._closed = 0
        self._picked = self._simplest = self._refused = 0
        self._slower = [0] * (len(DECISION_BUCKETS) + 1)
        """Decisions by the bucket they fall into, not cumulated; the last is of those beyond all."""
        self._decision_seconds = 0.0
        self._unread = 0
        registry.register(_OwnCollector(self))
        self._refusals = _Bound(
            Counter("picker_refusals", "Requests refused.", ["reason"], registry=registry),
            "rejected-no-endpoints",
            "rejected-saturated",
            "unreadable-body",
        )
        self._scrape_seconds = _Bound(
            Histogram(
                "picker_scrape_duration_seconds",
                "Fetching and reading one page of an endpoint.",
                ["result"],
                buckets=_SCRAPE_BUCKETS,
                registry=registry,
            ),
            "ok",
        )
        self._unreadable = _Bound(
            Counter(
                "picker_unreadable_bodies",
                "Requests routed by their headers since their body told no model.",
                ["reason"],
                registry=registry,
            )
        )
        self._rewritten = Counter(
            "picker_models_rewritten",
            "Requests sent that ask for another model than their client named.",
            registry=registry,
        )
        self._not_rewritten = _Bound(
            Counter(
                "picker_models_not_rewritten",
                "Requests sent with the client's model, since the rules' one could not be written.",
                ["reason"],
                registry=registry,
            )
        )
        tokens = Counter(
            "picker_tokens",
            "Tokens that answers told: of the prompt, the cached part of those, and of the completion.",
            ["kind"],
            registry=registry,
        )
        self._prompt_tokens = tokens.labels("prompt")
        self._cached_tokens = tokens.labels("cached")
        self._completion_tokens = tokens.labels("completion")
        self._internal_errors = _Bound(
            Counter(
                "picker_internal_errors",
                "Faults of the picker itself that were caught; the log has each.",
                ["where"],
                registry=registry,
            )
        )

    def decided(self, seconds: float, *, simplest: bool) -> None:
        """An endpoint was picked, by the profile or by the simplest policy."""
        if simplest:
            self._simplest += 1
        else:
            self._picked += 1
        self._slower[bisect_left(DECISION_BUCKETS, seconds)] += 1
        self._decision_seconds += seconds

    def refused(self, reason: str) -> None:
        """The gateway was told to refuse a request."""
        self._refused += 1
        self._refusals[reason].inc()

    def scraped(self, result: str, seconds: float) -> None:
        """A page was fetched and read, with what result (``ok``, ``timeout``, …)."""
        self._scrape_seconds[result].observe(seconds)
        self._unread += result != "ok"

    def unreadable(self, reason: str) -> None:
        """A body told no model. What follows a colon in the reason varies from body to body."""
        self._unreadable[reason.partition(":")[0]].inc()

    def rewritten(self) -> None:
        """A request was sent that asks for another model than its client named."""
        self._rewritten.inc()

    def not_rewritten(self, reason: str) -> None:
        """Another model should have been asked for, but its name could not be written into the body."""
        self._not_rewritten[reason].inc()

    def used(self, *, prompt: int, cached: int, completion: int) -> None:
        """An answer told the tokens of its prompt, those of them that were cached, and its own."""
        self._prompt_tokens.inc(prompt)
        self._cached_tokens.inc(cached)
        self._completion_tokens.inc(completion)

    def internal_error(self, where: str) -> None:
        """A fault of the picker itself was caught."""
        self._internal_errors[where].inc()

    def stream_opened(self) -> None:
        """A stream was opened."""
        self._opened += 1

    def stream_closed(self) -> None:
        """A stream was closed, however."""
        self._closed += 1

    @property
    def decisions(self) -> int:
        """Decisions so far, refusals among them."""
        return self._picked + self._simplest + self._refused

    @property
    def streams_open(self) -> int:
        """Streams open now."""
        return self._opened - self._closed

    def decision_buckets(self) -> list[int]:
        """Picks so far by the bucket of ``DECISION_BUCKETS`` they fall into; the last is beyond all."""
        return list(self._slower)

    def refusals(self) -> dict[str, int]:
        """Refusals so far by reason."""
        return {
            sample.labels["reason"]: int(sample.value)
            for family in self._refusals.metric.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }

    def families(self) -> Iterator[Metric]:
        """What is counted here as plain numbers."""
        yield CounterMetricFamily("picker_streams", _OWN_HELP["picker_streams"], value=self._opened)
        name = "picker_streams_open"
        yield GaugeMetricFamily(name, _OWN_HELP[name], value=self._opened - self._closed)
        decisions = CounterMetricFamily("picker_decisions", _OWN_HELP["picker_decisions"], labels=["outcome"])
        outcomes = {"picked": self._picked, "simplest": self._simplest, "refused": self._refused}
        for outcome, count in outcomes.items():
            decisions.add_metric([outcome], count)
        yield decisions
        bounds = [*map(str, DECISION_BUCKETS), "+Inf"]
        name = "picker_decision_duration_seconds"
        buckets = list(zip(bounds, accumulate(self._slower), strict=True))
        yield HistogramMetricFamily(name, _OWN_HELP[name], buckets=buckets, sum_value=self._decision_seconds)
        # The same under llm-d's name, whose bounds are all among ours.
        named = [bucket for bucket in buckets if bucket[0] in _SCHEDULER_BUCKETS]
        name = "llm_d_epp_scheduler_e2e_duration_seconds"
        yield HistogramMetricFamily(name, _OWN_HELP[name], buckets=named, sum_value=self._decision_seconds)
        name = "llm_d_epp_datalayer_poll_errors"
        errors = CounterMetricFamily(name, _OWN_HELP[name], labels=["source_type"])
        errors.add_metric(["metrics-data-source"], self._unread)
        yield errors


class _OwnCollector(Collector):
    """The numbers that :class:`Metrics` counts itself."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Those with their names; there is no cheaper way to learn them."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        return self._metrics.families()


_OWN_HELP = {
    "picker_streams": "ext_proc streams opened.",
    "picker_streams_open": "ext_proc streams open now.",
    "picker_decisions": "Decisions: picked, simplest (picked after the deadline), refused.",
    "picker_decision_duration_seconds": "From the question to the pick.",
    "llm_d_epp_scheduler_e2e_duration_seconds": "[ALPHA] From the question to the pick.",
    "llm_d_epp_datalayer_poll_errors": "[ALPHA] Pages of endpoints that could not be had or read.",
}


class _FleetCollector(Collector):
    """Gauges read off the fleet's columns."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Only the names: without this the registry would collect once to learn them."""
        return [_family(name) for name in _FLEET_HELP]

    def collect(self) -> Iterator[Metric]:
        """One pass over the columns for a page."""
        fleet, now = self._fleet, self._clock()
        rows = np.flatnonzero(fleet.alive)
        yield self._states(rows, now)

        in_flight = fleet.own[rows] + fleet.untracked[rows]
        yield _plain("picker_requests_in_flight", float(in_flight.sum()))
        ages = now - fleet.fetched_at[rows]
        fetched = np.isfinite(ages)
        yield _plain("picker_endpoints_never_scraped", float(np.count_nonzero(~fetched)))
        yield _plain("picker_oldest_page_age_seconds", float(ages[fetched].max(initial=0.0)))

        own = rows[:MOST_ENDPOINTS]
        addresses = [fleet.addresses[row] for row in own.tolist()]
        yield _per_endpoint("picker_endpoint_requests_in_flight", addresses, in_flight[:MOST_ENDPOINTS])
        yield _per_endpoint("picker_endpoint_reported_load", addresses, fleet.scraped_load[own])
        yield _per_endpoint("picker_endpoint_page_age_seconds", addresses, ages[:MOST_ENDPOINTS])
        yield _per_endpoint("picker_endpoint_breaker_open", addresses, fleet.breaker_open[own])

    def _states(self, rows: NDArray[np.intp], now: float) -> Metric:
        state = states(self._fleet, rows, now)
        counts = np.bincount(state, minlength=len(STATES)).tolist()
        family = _family("picker_endpoints", "state")
        for name, count in zip(STATES, counts, strict=True):
            family.add_metric([name], count)
        return family


_FLEET_HELP = {
    "picker_endpoints": "Endpoints of the pool by state.",
    "picker_endpoints_never_scraped": "Endpoints of which no page could be had yet.",
    "picker_oldest_page_age_seconds": "Age of the oldest last good page; 0 without any.",
    "picker_requests_in_flight": "Requests sent to the pool and not known to have ended; where the end is "
    "not seen, for the usual time.",
    "picker_endpoint_requests_in_flight": "Requests sent there and not known to have ended.",
    "picker_endpoint_reported_load": "Requests there, from whomever, as its last page says.",
    "picker_endpoint_page_age_seconds": "Time since its last good page.",
    "picker_endpoint_breaker_open": "1 while it is held out for failing.",
}


def _family(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, _FLEET_HELP[name], labels=labels)


def _plain(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, _FLEET_HELP[name], value=value)


def _per_endpoint(name: str, addresses: list[str], values: NDArray[np.float64] | NDArray[np.bool_]) -> Metric:
    """One sample an endpoint, but none where the value is not known."""
    family = _family(name, "endpoint")
    for address, value in zip(addresses, values.tolist(), strict=True):
        if math.isfinite(value):
            family.add_metric([address], value)
    return family
