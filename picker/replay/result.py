"""What one run showed, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from picker.replay.servers import Fault
    from picker.replay.simulation import Records

_OK = 200
_SETTLED = 1.0
"""Seconds a picker may take to see that an endpoint fails."""
QUANTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Result:
    """Of the good answers: seconds to the first token and to the end, at their quantiles 50, 90 and 99.

    ``settled_ttft`` leaves out the first fifth of the requests: sessions all begin at the same moment.
    ``goodput``: good answers a second whose first token came within the goal. ``hit_rate``: cached of all
    prompt tokens of good answers; ``ideal_hit_rate``: what one server with an endless cache would reach.
    ``spread``: requests of the busiest endpoint over the mean. ``to_failing``: share of the requests that
    went to an endpoint which had been failing for more than a second. ``agreement``: how often another
    replica would have chosen the same endpoint. NaN: there is nothing to tell it from.
    """

    requests: int
    failed: int
    seconds: float
    ttft: tuple[float, ...]
    settled_ttft: tuple[float, ...]
    end: tuple[float, ...]
    goodput: float
    hit_rate: float
    ideal_hit_rate: float
    spread: float
    per_endpoint: tuple[int, ...]
    to_failing: float
    preemptions: int
    cpu_seconds: float
    agreement: float
    explanation: tuple[str, ...]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Result:
        """From what :meth:`as_json` gave."""
        return cls(**{name: _thawed(value) for name, value in fields.items()})

    def as_json(self) -> dict[str, Any]:
        """For a file; NaN as null."""
        fields = asdict(self)
        return {
            name: None if isinstance(value, float) and np.isnan(value) else value
            for name, value in fields.items()
        }


def _thawed(value: Any) -> Any:  # noqa: ANN401 - what JSON can hold
    if value is None:
        return float("nan")
    return tuple(map(_thawed, value)) if isinstance(value, list) else value


def result_of(  # noqa: PLR0913 - what is known of a run
    records: Records,
    *,
    endpoints: int,
    faults: Sequence[Fault],
    goal: float,
    ideal_hit_rate: float,
    preemptions: int,
    cpu_seconds: float,
    agreement: float,
    explanation: Sequence[str],
) -> Result:
    """Summarise. ``goal``: seconds to the first token that count as good."""
    good = np.array(records.status) == _OK
    first = np.array(records.first_token)[good]
    end = np.array(records.end)
    endpoint = np.array(records.endpoint)
    sent_at = np.array(records.sent_at)
    prompt = int(np.array(records.prompt)[good].sum())
    per_endpoint = np.bincount(endpoint[endpoint >= 0], minlength=endpoints)
    seconds = float((sent_at + end).max()) if len(records) else 0.0
    return Result(
        requests=len(records),
        failed=int(np.count_nonzero(~good)),
        seconds=seconds,
        ttft=_quantiles(first),
        settled_ttft=_quantiles(np.array(records.first_token)[len(good) // 5 :][good[len(good) // 5 :]]),
        end=_quantiles(end[good]),
        goodput=int(np.count_nonzero(first <= goal)) / seconds if seconds else 0.0,
        hit_rate=int(np.array(records.cached)[good].sum()) / prompt if prompt else 0.0,
        ideal_hit_rate=ideal_hit_rate,
        spread=float(per_endpoint.max() / per_endpoint.mean()) if per_endpoint.any() else float("nan"),
        per_endpoint=tuple(per_endpoint.tolist()),
        to_failing=_to_failing(endpoint, sent_at, faults),
        preemptions=preemptions,
        cpu_seconds=cpu_seconds,
        agreement=agreement,
        explanation=tuple(explanation),
    )


def _quantiles(times: NDArray[np.float64]) -> tuple[float, ...]:
    if not len(times):
        return tuple(float("nan") for _ in QUANTILES)
    return tuple(np.percentile(times, QUANTILES).tolist())


def _to_failing(endpoint: NDArray[np.int64], sent_at: NDArray[np.float64], faults: Sequence[Fault]) -> float:
    during = np.zeros(len(endpoint), dtype=np.bool_)
    there = during.copy()
    for number, fault in enumerate(faults):
        failing = (sent_at >= fault.fails_from + _SETTLED) & (sent_at < fault.fails_until)
        during |= failing
        there |= failing & (endpoint == number)
    of = int(np.count_nonzero(during))
    return int(np.count_nonzero(there)) / of if of else 0.0
