"""The metrics page of a vLLM server (V1 engine): its own families, and those of Python and FastAPI.

Names, kinds and labels are vLLM's. The gauges, and how many requests there were, are true; what the
histograms say of each request is made up, since all that a reader of them pays for is their size.
"""

from __future__ import annotations

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
_LABELS = f'engine="0",model_name="{MODEL}"'
_KV_BLOCKS = 27_000
_KV_OF_REQUEST = 0.005
"""Share of the KV cache that one running request takes."""
_PROMPT_TOKENS = 512
_OUTPUT_TOKENS = 1_000

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
_LONG_SECONDS = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
)
_TOKENS = tuple(float(step * 10**power) for power in range(5) for step in (1, 2, 5))
_HISTOGRAMS = {
    "iteration_tokens_total": _TOKENS,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "request_max_num_generation_tokens": _TOKENS,
    "request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
    "request_params_max_tokens": _TOKENS,
    "time_to_first_token_seconds": _SECONDS,
    "inter_token_latency_seconds": _SECONDS,
    "request_time_per_output_token_seconds": _SECONDS,
    "e2e_request_latency_seconds": _LONG_SECONDS,
    "request_queue_time_seconds": _LONG_SECONDS,
    "request_inference_time_seconds": _LONG_SECONDS,
    "request_prefill_time_seconds": _LONG_SECONDS,
    "request_decode_time_seconds": _LONG_SECONDS,
}
_OF_PATHS = "http_request_duration_seconds"
"""FastAPI's own, for each of its paths: what fills a page up to its size."""
_COUNT = "\0"
"""Stands for the number of requests in what is written once for all pages."""


class VllmPage:
    """Writes the page of one server, of about ``size`` bytes (at least what its own families need).

    ``started``: when it was started, in seconds since 1970.
    """

    def __init__(self, size: int, started: float) -> None:
        parts = [_histogram(f"vllm:{name}", _LABELS, bounds) for name, bounds in _HISTOGRAMS.items()]
        room = size - sum(map(len, parts))
        parts.append(_head(_OF_PATHS, "histogram"))
        while room > 0:
            parts.append(_series(_OF_PATHS, f'handler="/v1/{len(parts):03}",method="POST"', _SECONDS))
            room -= len(parts[-1])
        self._template = "".join(parts)
        self._started = started
        self._counted = -1
        self._histograms = ""

    def write(self, *, running: int, waiting: int, requests: int, cpu_seconds: float) -> bytes:
        """The page as of now; ``requests`` were answered so far, which took ``cpu_seconds``."""
        if requests != self._counted:
            self._counted, self._histograms = requests, self._template.replace(_COUNT, f"{requests:.1f}")
        kv_usage = min(1.0, _KV_OF_REQUEST * running)
        config = f'block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="{_KV_BLOCKS}"'
        lines = (
            _family("process_cpu_seconds_total", "counter", "", cpu_seconds),
            _family("process_start_time_seconds", "gauge", "", self._started),
            _family("vllm:num_requests_running", "gauge", _LABELS, running),
            _family("vllm:num_requests_waiting", "gauge", _LABELS, waiting),
            _family("vllm:kv_cache_usage_perc", "gauge", _LABELS, kv_usage),
            _family("vllm:cache_config_info", "gauge", config, 1),
            _family("vllm:num_preemptions_total", "counter", _LABELS, 0),
            _family("vllm:prompt_tokens_total", "counter", _LABELS, _PROMPT_TOKENS * requests),
            _family("vllm:generation_tokens_total", "counter", _LABELS, _OUTPUT_TOKENS * requests),
            _family("vllm:request_success_total", "counter", f'{_LABELS},finished_reason="stop"', requests),
        )
        return ("".join(lines) + self._histograms).encode()


def _head(name: str, kind: str) -> str:
    return f"# HELP {name} As the server's documentation tells.\n# TYPE {name} {kind}\n"


def _family(name: str, kind: str, labels: str, value: float) -> str:
    return f"{_head(name, kind)}{name}{{{labels}}} {float(value)}\n".replace("{}", "")


def _histogram(name: str, labels: str, bounds: tuple[float, ...]) -> str:
    return _head(name, "histogram") + _series(name, labels, bounds)


def _series(name: str, labels: str, bounds: tuple[float, ...]) -> str:
    buckets = [f'{name}_bucket{{{labels},le="{bound}"}} {_COUNT}\n' for bound in (*bounds, "+Inf")]
    return "".join((*buckets, *(f"{name}_{end}{{{labels}}} {_COUNT}\n" for end in ("count", "sum"))))
