"""Requests by model, as the llm-d picker counts them: the same names, labels and buckets.

Dashboards and autoscalers of that picker read them. What the gateway does not show (the answer's body, its
end) is not counted, and a histogram without a sample has no series. Everything is counted in plain numbers
and put into words when a page is asked for.

Which model a request names is its client's to say, so labels are bounded: a name that the pool's pages or the
policy's objects have gets a place of its own, others only as long as there are :data:`FIRST_NAMES`; after
that, and beyond :data:`MOST_TALLIES` in all, requests count as ``other``.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

FIRST_NAMES = 16
"""Model names with series of their own although nobody but clients names them."""
MOST_TALLIES = 32
"""Sets of labels in all. Each has up to 260 lines on a page."""
OTHER = "other"
_FAIRNESS = "default-flow"
"""The value of the label where requests are not kept apart by tenants, as there."""
_MOST_CLUSTERS = 64

_PREFIX = "llm_d_epp_"
_LABELS = ("model_name", "target_model_name", "fairness_id", "priority")

# Buckets as published, the typing error 32778 among them: series of other buckets cannot be added up.
_LATENCY = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
    *(15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0),
    *(1800.0, 2700.0, 3600.0),
)
_FIRST_TOKEN = tuple(bound for bound in _LATENCY if bound <= 120.0)  # noqa: PLR2004 - as published
_REQUEST_BYTES = tuple(float(1 << power) for power in range(6, 31))
_TOKENS = (
    *(1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0),
    *(16384.0, 32778.0, 65536.0, 131072.0, 262144.0, 524288.0, 1048576.0),
)
_OUTPUT_TOKENS = tuple(bound for bound in _TOKENS if bound <= 8192.0)  # noqa: PLR2004 - as published
_ANSWER_BYTES = tuple(bound for bound in _TOKENS if bound <= 65536.0)  # noqa: PLR2004 - as published
_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_PER_STREAMED_TOKEN = (
    *(0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6),
    *(0.8, 1.0, 2.0),
)
_CODES = {
    400: "BadRequest",
    404: "NotFound",
    412: "PreconditionFailed",
    429: "ResourceExhausted",
    500: "Internal",
    503: "ServiceUnavailable",
}


class Asked(Protocol):
    """What is counted of a request when it is decided about."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers."""

    @property
    def incoming_model(self) -> str:
        """The model its client named."""

    @property
    def model(self) -> str:
        """The model that is asked for."""

    @property
    def priority(self) -> int:
        """Its objective's."""

    @property
    def stream(self) -> bool:
        """Whether it asks for its answer piece by piece."""

    @property
    def body_bytes(self) -> int:
        """Length of its body, where that was read."""


class Used(Protocol):
    """Tokens that an answer told; None where it did not."""

    @property
    def prompt_tokens(self) -> int | None:
        """Of the prompt."""

    @property
    def completion_tokens(self) -> int | None:
        """Of the answer."""

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt, those that were not computed."""


class Ended(Protocol):
    """What is counted of a request at its end."""

    @property
    def whole(self) -> bool:
        """Whether it was seen to end, and not by being broken off."""

    @property
    def served(self) -> str:
        """The endpoint that served it, where the gateway tells."""

    @property
    def usage(self) -> Used | None:
        """What its answer told."""

    @property
    def body_bytes(self) -> int:
        """Of its answer, as far as they passed by."""


class Places(Protocol):
    """Where the endpoint is that a request was sent to."""

    @property
    def clusters(self) -> Sequence[str]:
        """All RayClusters of the pool."""

    def cluster_of(self, address: str) -> str:
        """The RayCluster of an endpoint; empty without one."""


@cache
def _bucket_names(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(str, bounds), "+Inf")


class Histogram:
    """Samples by the bucket they fall into."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Not cumulated; the last is of those beyond all."""
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a sample."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """As a family wants them; empty without a sample."""
        if not any(self.counts):
            return []
        return list(zip(_bucket_names(self.bounds), accumulate(self.counts), strict=True))


_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...], str]] = {
    "duration": ("request_duration_seconds", _LATENCY, "From the first message to the end of the answer."),
    "request_bytes": ("request_size_bytes", _REQUEST_BYTES, "Bodies of requests."),
    "answer_bytes": ("response_size_bytes", _ANSWER_BYTES, "Bodies of answers, where they pass by."),
    "input": ("request_input_tokens", _TOKENS, "Prompt tokens that answers told."),
    "output": ("request_output_tokens", _OUTPUT_TOKENS, "Completion tokens that answers told."),
    "cached": ("request_cached_tokens", _TOKENS, "Cached prompt tokens that answers told."),
    "per_token": ("request_ntpot_seconds", _PER_TOKEN, "Duration by completion tokens."),
    "per_streamed_token": (
        "request_streaming_tpot_seconds",
        _PER_STREAMED_TOKEN,
        "After the first token, time by token.",
    ),
    "first_token": ("request_ttft_seconds", _FIRST_TOKEN, "To the first byte of the answer's body."),
    "first_streamed_token": ("request_ttft_seconds", _FIRST_TOKEN, ""),
}
"""Attributes of a tally: series without prefix, bounds, help."""
_HELP = {name: f"[ALPHA] {text}" for _, (name, _, text) in _HISTOGRAMS.items() if text}
_STREAMING = {"first_token": "false", "first_streamed_token": "true"}


class Tally:
    """The numbers of requests that have the same labels."""

    __slots__ = (*_HISTOGRAMS, "errors", "requests", "running")

    def __init__(self) -> None:
        self.requests = self.running = 0
        self.errors: dict[str, int] = {}
        for attribute, (_, bounds, _) in _HISTOGRAMS.items():
            setattr(self, attribute, Histogram(bounds))

    duration: Histogram
    request_bytes: Histogram
    answer_bytes: Histogram
    input: Histogram
    output: Histogram
    cached: Histogram
    per_token: Histogram
    per_streamed_token: Histogram
    first_token: Histogram
    first_streamed_token: Histogram
    requests: int
    running: int
    errors: dict[str, int]


class Counted:
    """A request that was sent to an endpoint."""

    __slots__ = ("_began", "_endpoint", "_first", "_owner", "_streaming", "_tally")

    def __init__(self, owner: RequestSeries, tally: Tally, asked: Asked, endpoint: str, began: float) -> None:
        self._owner = owner
        self._tally = tally
        self._endpoint = endpoint
        self._began = began
        self._streaming = asked.stream
        self._first = 0.0

    def first_token(self) -> None:
        """The first byte of the answer's body was seen."""
        self._first = took = self._owner.clock() - self._began
        tally = self._tally
        (tally.first_streamed_token if self._streaming else tally.first_token).add(took)

    def ended(self, end: Ended) -> None:
        """Its end was seen, or will not be seen. To be called once."""
        tally = self._tally
        tally.running -= 1
        if end.served and end.served != self._endpoint:
            self._owner.served_elsewhere += 1
        if end.body_bytes:
            tally.answer_bytes.add(end.body_bytes)
        if not end.whole:
            return
        took = self._owner.clock() - self._began
        tally.duration.add(took)
        if end.usage is not None:
            self._used(tally, end.usage, took)

    def _used(self, tally: Tally, usage: Used, took: float) -> None:
        if usage.prompt_tokens:
            tally.input.add(usage.prompt_tokens)
        if usage.cached_tokens is not None:
            tally.cached.add(usage.cached_tokens)
        tokens = usage.completion_tokens
        if not tokens:
            return
        tally.output.add(tokens)
        tally.per_token.add(took / tokens)
        if self._streaming and self._first and tokens > 1:
            tally.per_streamed_token.add((took - self._first) / (tokens - 1))


class RequestSeries(Collector):
    """Counts requests. ``knows`` says whether somebody else than a client names a model.

    ``rewrite_of`` gives the name of the InferenceModelRewrite by which one model became another.
    """

    def __init__(
        self,
        places: Places,
        *,
        knows: Callable[[str], bool] = lambda _: False,
        rewrite_of: Callable[[str, str], str] = lambda _model, _target: "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self.served_elsewhere = 0
        """Requests that another endpoint served than the first choice."""
        self._places = places
        self._knows = knows
        self._rewrite_of = rewrite_of
        self._tallies: dict[tuple[str, str, int], Tally] = {}
        self._others = Tally()
        self._first_names: set[str] = set()
        self._sent: dict[str, int] = {}

    def picked(self, asked: Asked, endpoint: str, began: float) -> Counted:
        """A request was sent to ``endpoint``; its first message came at ``began`` of the clock."""
        tally = self._tally(asked)
        tally.requests += 1
        tally.running += 1
        size = asked.body_bytes or _length(asked.headers.get("content-length", ""))
        if size:
            tally.request_bytes.add(size)
        if self._places.clusters:
            self._sent_to(self._places.cluster_of(endpoint))
        return Counted(self, tally, asked, endpoint, began)

    def refused(self, asked: Asked | None, status: int) -> None:
        """A request was refused."""
        code = _CODES.get(status, "Unknown")
        errors = (self._others if asked is None else self._tally(asked)).errors
        errors[code] = errors.get(code, 0) + 1

    def _tally(self, asked: Asked) -> Tally:
        model = asked.model
        key = (asked.incoming_model or model, model, asked.priority)
        return self._tallies.get(key) or self._new(key)

    def _new(self, key: tuple[str, str, int]) -> Tally:
        key = (self._label(key[0]), self._label(key[1]), key[2])
        found = self._tallies.get(key)
        if found is None:
            if len(self._tallies) >= MOST_TALLIES:
                return self._others
            found = self._tallies[key] = Tally()
        return found

    def _label(self, model: str) -> str:
        """The name if it has a place of its own, or gets one."""
        if not model or model in self._first_names or self._knows(model):
            return model
        if len(self._first_names) >= FIRST_NAMES:
            return OTHER
        self._first_names.add(model)
        return model

    def _sent_to(self, cluster: str) -> None:
        """Of clusters that are gone, the one that was new first is forgotten first."""
        sent = self._sent
        if not cluster:
            return
        if cluster not in sent and len(sent) >= _MOST_CLUSTERS:
            del sent[next(iter(sent))]
        sent[cluster] = sent.get(cluster, 0) + 1

    def describe(self) -> Iterable[Metric]:
        """Nothing: without this the registry would collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families."""
        tallies = [(_labels(*key), tally) for key, tally in list(self._tallies.items())]
        if self._others.requests or self._others.errors:
            tallies.append(((OTHER, OTHER, _FAIRNESS, "0"), self._others))
        yield from _plain(tallies)
        yield from _histograms(tallies)
        yield self._rewrites()
        yield CounterMetricFamily(
            "picker_served_elsewhere",
            "Requests that another endpoint served than the first choice, as the gateway reports.",
            value=self.served_elsewhere,
        )
        family = CounterMetricFamily(
            "picker_cluster_requests", "Requests sent, by RayCluster.", labels=["cluster"]
        )
        for cluster, sent in self._sent.items():
            family.add_metric([cluster], sent)
        yield family

    def _rewrites(self) -> Metric:
        family = CounterMetricFamily(
            f"{_PREFIX}model_rewrite_decisions",
            "[ALPHA] Requests by the rule that changed their model.",
            labels=["model_rewrite_name", "model_name", "target_model"],
        )
        found: dict[tuple[str, str], int] = {}
        for (model, target, _), tally in list(self._tallies.items()):
            if model != target:
                found[model, target] = found.get((model, target), 0) + tally.requests
        for (model, target), requests in found.items():
            family.add_metric([self._rewrite_of(model, target), model, target], requests)
        return family


def _plain(tallies: list[tuple[tuple[str, ...], Tally]]) -> Iterator[Metric]:
    requests = CounterMetricFamily(f"{_PREFIX}request", "[ALPHA] Requests sent.", labels=_LABELS)
    errors = CounterMetricFamily(
        f"{_PREFIX}request_error", "[ALPHA] Requests refused.", labels=(*_LABELS, "error_code")
    )
    running = GaugeMetricFamily(f"{_PREFIX}request_running", "[ALPHA] Requests open.", labels=_LABELS)
    attempts = CounterMetricFamily(
        f"{_PREFIX}scheduler_attempts",
        "[ALPHA] Decisions by whether there was an endpoint for them.",
        labels=["status", "target_model_name"],
    )
    by_target: dict[tuple[str, str], int] = {}
    for labels, tally in tallies:
        requests.add_metric(labels, tally.requests)
        if labels[0]:
            running.add_metric(labels, tally.running)
        for code, count in list(tally.errors.items()):
            errors.add_metric((*labels, code), count)
        failed = sum(tally.errors.values())
        for status, count in (("success", tally.requests), ("failure", failed)):
            by_target[status, labels[1]] = by_target.get((status, labels[1]), 0) + count
    for key, count in by_target.items():
        attempts.add_metric(key, count)
    return iter((requests, errors, running, attempts))


def _histograms(tallies: list[tuple[tuple[str, ...], Tally]]) -> Iterator[Metric]:
    families: dict[str, HistogramMetricFamily] = {}
    for attribute, (name, _, _) in _HISTOGRAMS.items():
        streaming = _STREAMING.get(attribute)
        names = _LABELS if streaming is None else (*_LABELS, "streaming")
        family = families.get(name)
        if family is None:
            family = families[name] = HistogramMetricFamily(_PREFIX + name, _HELP[name], labels=names)
        for labels, tally in tallies:
            histogram: Histogram = getattr(tally, attribute)
            buckets = histogram.buckets()
            if buckets:
                values = labels if streaming is None else (*labels, streaming)
                family.add_metric(values, buckets, histogram.total)
    return iter(families.values())


def _labels(model: str, target: str, priority: int) -> tuple[str, ...]:
    return model, target, _FAIRNESS, str(priority)


def _length(text: str) -> int:
    """A content-length; 0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0  # noqa: PLR2004 - petabytes
