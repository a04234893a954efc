"""vLLM's own page: one engine (or several data-parallel ones), counted as the page is written.

The signals are those of the Gateway API Inference Extension's model server protocol (proposal 003).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from picker.metrics.dialects.dialect import Dialect
from picker.metrics.pages import family, mean, samples, total
from picker.metrics.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from picker.metrics.pages import Sample

_WAITING = b"vllm:num_requests_waiting"
_RUNNING = b"vllm:num_requests_running"
_KV_USAGE = b"vllm:kv_cache_usage_perc"
_KV_USAGE_BEFORE_0_10 = b"vllm:gpu_cache_usage_perc"
_LORA = b"vllm:lora_requests_info"
_STARTED = b"process_start_time_seconds"

_MAX_MODELS = 256
_MAX_ADAPTER_LIST = 64 * 1024


def matches(page: bytes) -> bool:
    """Whether the page has any of vLLM's families."""
    return b"\nvllm:" in page or page.startswith(b"vllm:")


def read(page: bytes) -> Reading:
    """Sum the engines' requests; of their KV usage take the mean.

    A page with only one of *waiting* and *running* does not say how much is there.
    """
    queue = total(_samples(page, _WAITING))
    running = total(_samples(page, _RUNNING))
    kv_usage = mean(_samples(page, _KV_USAGE))
    if math.isnan(kv_usage):
        kv_usage = mean(_samples(page, _KV_USAGE_BEFORE_0_10))
    return Reading(
        load=queue + running,
        queue=queue,
        running=running,
        kv_usage=kv_usage,
        models=_adapters(page),
        engine=next((repr(sample.value) for sample in samples(page, _STARTED, limit=1)), ""),
    )


def _samples(page: bytes, name: bytes) -> Iterator[Sample]:
    return samples(family(page, name), name)  # vLLM's gauges come first on its page


def _adapters(page: bytes) -> frozenset[str]:
    """Adapters of the latest series: vLLM leaves old ones behind, the value is when each was written."""
    latest = max(_samples(page, _LORA), key=_written, default=None)
    if latest is None:
        return frozenset()
    lists = (latest.label(b"running_lora_adapters"), latest.label(b"waiting_lora_adapters"))
    ids = [one.strip() for text in lists for one in (text or "")[:_MAX_ADAPTER_LIST].split(",")]
    return frozenset([one for one in ids if one][:_MAX_MODELS])


def _written(sample: Sample) -> float:
    return 0.0 if math.isnan(sample.value) else sample.value  # NaN has no place in an order


VLLM = Dialect(name="vllm", interval=0.2, min_interval=0.0, max_lag=0.0, matches=matches, read=read)
