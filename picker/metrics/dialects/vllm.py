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
_CACHE_CONFIG = b"vllm:cache_config_info"
_PROMPT_TOKENS = b"vllm:prompt_tokens_total"
_STARTED = b"process_start_time_seconds"

_MAX_MODELS = 256
_MAX_ADAPTER_LIST = 64 * 1024
_MOST_DIGITS = 12


def matches(page: bytes) -> bool:
    """Whether the page has any of vLLM's families."""
    return b"\nvllm:" in page or page.startswith(b"vllm:")


def read(page: bytes) -> Reading:
    """Sum the engines' requests and cache blocks; of their KV usage take the mean.

    A page with only one of *waiting* and *running* does not say how much is there. Adapters are those of the
    latest series: vLLM leaves old ones behind, the value is when each was written.
    """
    queue = total(_samples(page, _WAITING))
    running = total(_samples(page, _RUNNING))
    kv_usage = mean(_samples(page, _KV_USAGE))
    if math.isnan(kv_usage):
        kv_usage = mean(_samples(page, _KV_USAGE_BEFORE_0_10))
    lora = max(_samples(page, _LORA), key=_written, default=None)
    configs = list(_samples(page, _CACHE_CONFIG))
    return Reading(
        load=queue + running,
        queue=queue,
        running=running,
        kv_usage=kv_usage if 0.0 <= kv_usage <= 1.0 else math.nan,
        models=_adapters(lora, b"running_lora_adapters"),
        waiting_models=_adapters(lora, b"waiting_lora_adapters"),
        max_models=math.nan if lora is None else _positive(lora, b"max_lora"),
        kv_blocks=math.fsum(_positive(config, b"num_gpu_blocks") for config in configs) or math.nan,
        block_size=min((_positive(config, b"block_size") for config in configs), default=math.nan),
        counter=total(_samples(page, _PROMPT_TOKENS)),
        engine=next((repr(sample.value) for sample in samples(page, _STARTED, limit=1)), ""),
    )


def _samples(page: bytes, name: bytes) -> Iterator[Sample]:
    return samples(family(page, name), name)  # vLLM's gauges come first on its page


def _adapters(lora: Sample | None, label: bytes) -> frozenset[str]:
    listed = (lora and lora.label(label)) or ""
    ids = [one.strip() for one in listed[:_MAX_ADAPTER_LIST].split(",")]
    return frozenset([one for one in ids if one][:_MAX_MODELS])


def _positive(sample: Sample, label: bytes) -> float:
    """A whole number above 0 in a label; NaN for anything else ("None" before the engine is up)."""
    text = sample.label(label) or ""
    if not 0 < len(text) <= _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        return math.nan
    return float(text) or math.nan


def _written(sample: Sample) -> float:
    return 0.0 if math.isnan(sample.value) else sample.value  # NaN has no place in an order


VLLM = Dialect(name="vllm", interval=0.2, min_interval=0.0, max_lag=0.0, matches=matches, read=read)
