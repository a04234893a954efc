"""Saturation detectors of the llm-d picker: what admission asks, and filters for who wants one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scorer.plugins.filters import IN_FLIGHT_PRODUCER
from scorer.plugins.plugin import Plugin, PluginType
from scorer.saturation import FULL_KV_CACHE, FULL_QUEUE, Concurrency, Utilization

if TYPE_CHECKING:
    from scorer.contract import Mask, Request, Rows
    from scorer.document import Fields
    from scorer.fleet import Fleet
    from scorer.plugins.plugin import Means
    from scorer.saturation import Saturation

UTILIZATION = "utilization-detector"


class RoomFilter:
    """Drops endpoints that are fuller than ``most``; ``fallback``: unless nobody would be left."""

    def __init__(self, saturation: Saturation, most: float, *, fallback: bool) -> None:
        self._saturation = saturation
        self._most = most
        self._fallback = fallback

    def keep(self, fleet: Fleet, rows: Rows, _request: Request, now: float) -> Mask:
        """See :data:`scorer.contract.Filter`."""
        mask: Mask = self._saturation(fleet, rows, now) < self._most
        return mask if mask.any() or not self._fallback else np.ones(len(rows), dtype=np.bool_)


def _utilization(fields: Fields, _means: Means) -> Plugin:
    saturation = Utilization(
        fields.number("queueDepthThreshold", FULL_QUEUE, 1e-6),
        fields.number("kvCacheUtilThreshold", FULL_KV_CACHE, 1e-6, 1.0),
    )
    fields.text("metricsStalenessThreshold")  # old pages are discounted step by step
    headroom = fields.number("headroom", 0.0)
    room = RoomFilter(saturation, 1.0 + headroom, fallback=True)
    return Plugin(keep=room.keep, detector=saturation)


def _concurrency(fields: Fields, _means: Means) -> Plugin:
    mode = fields.text("concurrencyMode", "requests", ("requests", "tokens", "hybrid"))
    requests = fields.number("maxConcurrency", 100.0, 1.0)
    tokens = fields.number("maxTokenConcurrency", 1_000_000.0, 1.0)
    headroom = fields.number("headroom", 0.0)
    fields.reference("inFlightLoadProducerName", IN_FLIGHT_PRODUCER)
    saturation = Concurrency(
        requests if mode != "tokens" else 0.0,
        tokens if mode != "requests" else 0.0,
    )
    room = RoomFilter(saturation, 1.0 + headroom, fallback=False)
    return Plugin(keep=room.keep, detector=saturation, uses_prefix=mode != "requests")


DETECTORS = (PluginType(UTILIZATION, _utilization), PluginType("concurrency-detector", _concurrency))
