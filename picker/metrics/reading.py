"""What a metrics page says about its endpoint, whichever server wrote it."""

from __future__ import annotations

import math
import zlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Reading:
    """One page, read. NaN is *not said*: a missing series is no news, never a zero.

    ``load`` requests at the endpoint, running or waiting; ``queue`` those waiting; ``running`` those
    being worked on; ``kv_usage`` 0..1; ``local_running`` requests that the replicas on the endpoint's
    own node work on, whoever sent them; ``proxy`` whether it is a proxy before other servers, where
    requests wait only while none of them is free; ``models`` ids of the adapters or multiplexed models
    that are in use there, ``waiting_models`` of adapters that requests wait for, ``max_models`` how many of
    them it can hold at a time; ``kv_blocks`` and ``block_size`` (tokens) of its KV cache.

    ``marker`` differs between two pages if what they say was exported anew in between (see
    :class:`~picker.metrics.freshness.Freshness`). ``engine`` names the process that counted; it
    changes when that one restarts ("" if the page does not tell). ``counter`` only grows while it lives.
    """

    load: float = math.nan
    queue: float = math.nan
    running: float = math.nan
    kv_usage: float = math.nan
    local_running: float = math.nan
    proxy: bool = False
    models: frozenset[str] = frozenset()
    waiting_models: frozenset[str] = frozenset()
    max_models: float = math.nan
    kv_blocks: float = math.nan
    block_size: float = math.nan
    counter: float = math.nan
    marker: int = 0
    engine: str = ""


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """What the answer to a probe of the traffic address says. None is *not said*.

    ``routes`` are the path prefixes the endpoint can serve now; none at all is an empty tuple.
    """

    draining: bool | None = None
    routes: tuple[str, ...] | None = None

    @property
    def settled(self) -> bool:
        """Whether a further probe could tell no more."""
        return self.draining is not None


def fingerprint(values: Iterable[float]) -> int:
    """A marker over numbers, equal for equal numbers (NaN included)."""
    return zlib.crc32(array("d", values).tobytes())
