"""Plugins of the llm-d picker whose work is done here whether they are named or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.plugins.filters import IN_FLIGHT_PRODUCER, PREFIX_PRODUCER
from scorer.plugins.plugin import Plugin, PluginType

if TYPE_CHECKING:
    from scorer.document import Fields
    from scorer.plugins.plugin import Means

BLOCK_TOKENS = 64
"""The reference picker raises smaller blocks to this size as well: those of an engine (16 tokens) quadruple
the index and tell nothing more, since prompts share system prompts and turns, not half sentences."""
_MOST_BLOCK_TOKENS = 4096


def _prefix(fields: Fields, _means: Means) -> Plugin:
    fields.flag("autoTune", default=True)
    fields.integer("maxPrefixBlocksToMatch", 2048)
    fields.integer("maxPrefixTokensToMatch", 131_072)
    fields.integer("lruCapacityPerServer", 31_250, 1)
    block_tokens = fields.integer("blockSizeTokens", 16, 1, _MOST_BLOCK_TOKENS)
    return Plugin(
        block_tokens=max(block_tokens, BLOCK_TOKENS),
        told="there is one index, which compares whole prompts; an endpoint holds what its page says",
    )


TOLD = {
    IN_FLIGHT_PRODUCER: "requests and tokens in flight are always counted",
    "token-producer": "a token is taken for 4 bytes; no tokenizer is asked",
    "tokenizer": "a token is taken for 4 bytes; no tokenizer is asked",
    "metrics-data-source": "pages are scraped as PICKER_METRICS_INTERVAL and PICKER_METRICS_PATH say",
    "core-metrics-extractor": "which engine a page is of is seen from the page; see PICKER_METRICS_DIALECT",
    "models-data-source": "models are read from the metrics page",
    "models-data-extractor": "models are read from the metrics page",
    "k8s-notification-source": "objects are followed where the pool is",
    "endpoint-notification-source": "endpoints are followed where the pool is",
    "file-discovery": "the pool is PICKER_ENDPOINTS or PICKER_ENDPOINTS_FILE",
    "single-profile-handler": "there is always one profile",
    "agent-identity": "the session plugins read its headers where they name the attribute agent-identity",
    "destination-endpoint-served-verifier": "see PICKER_ECHO_SERVED",
    "global-strict-fairness-policy": "without flow control nothing waits here",
    "round-robin-fairness-policy": "without flow control nothing waits here",
    "program-aware-fairness": "without flow control nothing waits here",
    "fcfs-ordering-policy": "without flow control nothing waits here",
    "edf-ordering-policy": "without flow control nothing waits here",
    "slo-deadline-ordering-policy": "without flow control nothing waits here",
    "static-usage-limit-policy": "without flow control nothing waits here",
    "priority-holdback-policy": "without flow control nothing waits here",
    "soft-reflective-ceiling-policy": "without flow control nothing waits here",
    "eviction-sheddable-filter": "without flow control nothing waits here",
    "eviction-priority-then-time-ordering": "without flow control nothing waits here",
}
"""Plugins that are accepted, by what is so instead. Their parameters are not looked at."""

_APART = "prefill and decode endpoints are not chosen separately here"
_PREDICTOR = "there is no latency predictor here"
_EVENTS = "the engines' cache events are not followed here; prefix-cache-scorer goes by what was sent"
_CLUSTERS = "endpoints here are servers, not clusters"
_ATTRIBUTES = "endpoints here have no free attributes; utilization-filter and the load scorers read the page"
_TOPOLOGY = "hosts and racks are not known here"
_MEDIA = "images and audio are not compared here"

LACKING = {
    "endpoint-attribute-filter": _ATTRIBUTES,
    "endpoint-attribute-scorer": _ATTRIBUTES,
    "active-request-filter": "use utilization-filter with the metric active-requests",
    "slo-headroom-tier-filter": _PREDICTOR,
    "latency-scorer": _PREDICTOR,
    "predicted-latency-producer": _PREDICTOR,
    "latency-slo-admitter": _PREDICTOR,
    "probabilistic-admitter": "requests that may be shed are refused when the pool is saturated",
    "topology-affinity-filter": _TOPOLOGY,
    "topology-affinity-scorer": _TOPOLOGY,
    "topology-extractor": _TOPOLOGY,
    "dcgm-data-source": _ATTRIBUTES,
    "dcgm-extractor": _ATTRIBUTES,
    "multicluster-session-affinity-filter": _CLUSTERS,
    "multicluster-queue-scorer": _CLUSTERS,
    "multicluster-kv-cache-utilization-scorer": _CLUSTERS,
    "multicluster-prefix-cache-scorer": _CLUSTERS,
    "multicluster-approx-prefix-cache-producer": _CLUSTERS,
    "multicluster-file-discovery": _CLUSTERS,
    "precise-prefix-cache-scorer": _EVENTS,
    "precise-prefix-cache-producer": _EVENTS,
    "burst-prefix-cache-producer": "every request is in the index as soon as it is sent; remove it",
    "p2p-source-producer": _APART,
    "mm-embeddings-cache-scorer": _MEDIA,
    "mm-embeddings-cache-producer": _MEDIA,
    "session-id-producer": "name its header in the sources of session-affinity-scorer",
    "disagg-headers-handler": _APART,
    "prefill-header-handler": _APART,
    "disagg-profile-handler": _APART,
    "pd-profile-handler": _APART,
    "header-profile-handler": "there is one profile",
    "data-parallel-profile-handler": "give each rank's port as an endpoint of its own",
    "prefix-based-pd-decider": _APART,
    "always-disagg-pd-decider": _APART,
    "always-disagg-multimodal-decider": _APART,
    "request-attribute-reporter": "tokens of answers are counted by PICKER_READ_USAGE",
    "disaggregatedset-rollout-screener": _APART,
    "models-responder": "the model list is any endpoint's",
}
"""Plugins that the llm-d picker has and this one does not, by why or what to use instead."""


def _told(name: str, instead: str) -> PluginType:
    def make(fields: Fields, _means: Means) -> Plugin:
        fields.disregard()
        return Plugin(told=instead)

    return PluginType(name, make)


PRODUCERS = (PluginType(PREFIX_PRODUCER, _prefix), *(_told(name, instead) for name, instead in TOLD.items()))
