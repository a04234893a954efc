"""What is read off the fleet and the parts of the picker when a page is asked for, beyond its own counts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from picker.observe.states import STATES, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from prometheus_client import Metric

    from scorer.fleet import Fleet

_PREFIX = "llm_d_epp_"
_PLUGIN = ("prefix-cache-scorer", "prefix-cache-scorer")
_ELIGIBLE = STATES.index("eligible")


class PrefixHits(Protocol):
    """How much of the prompts the chosen endpoints were believed to hold.

    ``ratios`` and ``lengths`` (bytes) are counts by bucket, the last beyond all bounds.
    """

    ratios: list[int]
    ratio_sum: float
    lengths: list[int]
    length_sum: float

    @property
    def ratio_bounds(self) -> Sequence[float]:
        """Upper bounds of the first."""

    @property
    def length_bounds(self) -> Sequence[float]:
        """Upper bounds of the second."""


class Routing(Protocol):
    """What the router tells of itself."""

    @property
    def expected_cached_tokens(self) -> int:
        """Of answers that told their cached tokens: how many were expected."""

    @property
    def told_cached_tokens(self) -> int:
        """Of the same answers: how many they told."""

    @property
    def prefix_hits(self) -> PrefixHits:
        """Of all decisions."""

    @property
    def indexed_blocks(self) -> int:
        """Pairs of a block and an endpoint in the prefix index."""


class Messages(Protocol):
    """Counts of the gateway's messages."""

    @property
    def received(self) -> int:
        """All of them."""

    @property
    def echoed(self) -> int:
        """Those that went straight back, unread."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolSeries(Collector):
    """Gauges of the pool by llm-d's names, where ``pool`` is its label, and what is known of routing.

    ``weights`` gives the clusters' shares as they are wanted, ``ready`` whether this picker wants requests.
    """

    fleet: Fleet
    routing: Routing
    messages: Messages
    pool: str
    version: str
    weights: Callable[[], Mapping[str, float]]
    ready: Callable[[], bool]

    def describe(self) -> Iterable[Metric]:
        """Nothing: without this the registry would collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One pass over the columns for a page."""
        yield from self._pool()
        yield from self._prefixes()
        yield from self._clusters()
        yield CounterMetricFamily("picker_messages", "Messages of the gateway.", value=self.messages.received)
        yield CounterMetricFamily(
            "picker_messages_echoed",
            "Those of them, chunks of answers, that went straight back, unread.",
            value=self.messages.echoed,
        )
        yield GaugeMetricFamily(
            "picker_ready", "1 while this picker wants requests.", value=float(self.ready())
        )
        info = GaugeMetricFamily(f"{_PREFIX}info", "[ALPHA] What runs here.", labels=["commit", "build_ref"])
        info.add_metric(["unknown", f"serve-picker {self.version}"], 1.0)
        yield info

    def _pool(self) -> Iterator[Metric]:
        fleet = self.fleet
        rows = np.flatnonzero(fleet.alive)
        for name, column, text in (
            ("kv_cache_utilization", fleet.kv_usage, "share of the KV cache in use"),
            ("queue_size", fleet.queue, "requests that wait"),
            ("running_requests", fleet.running, "requests that run"),
        ):
            known = column[rows]
            known = known[np.isfinite(known)]
            if len(known):
                yield self._named(f"average_{name}", f"Mean of {text}, over endpoints.", float(known.mean()))
                yield self._named(f"std_dev_{name}", f"Deviation of {text}.", float(known.std()))
        # What the reference calls ready is what may be chosen: its store holds nothing else.
        ready = int(np.count_nonzero(fleet.reachable[rows] & ~fleet.draining[rows]))
        yield self._named("ready_endpoints", "Endpoints that serve.", ready)

    def _prefixes(self) -> Iterator[Metric]:
        hits = self.routing.prefix_hits
        labels = ["plugin_name", "plugin_type"]
        size = GaugeMetricFamily(
            f"{_PREFIX}prefix_indexer_size", "[ALPHA] Blocks in the index, by endpoint.", labels=labels
        )
        size.add_metric(_PLUGIN, self.routing.indexed_blocks)
        yield size
        for name, text, bounds, counts, total in (
            ("hit_ratio", "Of the prompt.", hits.ratio_bounds, hits.ratios, hits.ratio_sum),
            ("hit_bytes", "In bytes.", hits.length_bounds, hits.lengths, hits.length_sum),
        ):
            family = HistogramMetricFamily(
                f"{_PREFIX}prefix_indexer_{name}",
                f"[ALPHA] What the chosen endpoint was believed to hold of the prompt. {text}",
                labels=labels,
            )
            names = [*map(str, bounds), "+Inf"]
            family.add_metric(_PLUGIN, list(zip(names, accumulate(counts), strict=True)), total)
            yield family
        yield CounterMetricFamily(
            "picker_expected_cached_tokens",
            "Cached prompt tokens as expected at the decision, of answers that told theirs.",
            value=self.routing.expected_cached_tokens,
        )
        yield CounterMetricFamily(
            "picker_told_cached_tokens",
            "Cached prompt tokens as the same answers told.",
            value=self.routing.told_cached_tokens,
        )

    def _clusters(self) -> Iterator[Metric]:
        fleet = self.fleet
        wanted = self.weights()
        total = sum(wanted.values())
        share = GaugeMetricFamily(
            "picker_cluster_wanted_ratio", "Share of requests a RayCluster is to get.", labels=["cluster"]
        )
        for name, weight in wanted.items():
            share.add_metric([name], weight / total if total else 0.0)
        yield share
        rows = np.flatnonzero(fleet.alive)
        clusters = fleet.cluster[rows]
        eligible = clusters[states(fleet, rows, -np.inf) == _ELIGIBLE]
        yield self._by_cluster("picker_cluster_endpoints", "Endpoints, by RayCluster.", clusters)
        name = "picker_cluster_eligible_endpoints"
        yield self._by_cluster(name, "Endpoints that may be chosen, by RayCluster.", eligible)

    def _by_cluster(self, name: str, text: str, clusters: NDArray[np.int64]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["cluster"])
        names = self.fleet.clusters
        counts = np.bincount(clusters[clusters >= 0], minlength=len(names))
        for cluster, count in zip(names, counts.tolist(), strict=True):
            family.add_metric([cluster], count)
        return family

    def _named(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(_PREFIX + name, f"[ALPHA] {text}", labels=["name"])
        family.add_metric([self.pool], value)
        return family
