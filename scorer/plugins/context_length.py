"""Endpoints that are meant for prompts of certain lengths, by a label such as ``0-2048``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scorer.plugins.columns import PerVersion
from scorer.plugins.plugin import Plugin, PluginType

if TYPE_CHECKING:
    from scorer.contract import Mask, Request, Rows, Scores
    from scorer.document import Fields
    from scorer.fleet import Fleet
    from scorer.plugins.plugin import Means

LABEL = "llm-d.ai/context-length-range"
NEUTRAL = 0.5
OUTSIDE = 0.3
"""Below it is who is not meant for the length, above it who is."""
_WIDE = 10_000.0
_FAR = 1_000.0
_MOST_RANGES = 8
_RANGE = re.compile(r"\s*([0-9]{1,10})\s*-\s*([0-9]{1,10})\s*", re.ASCII)


class _Ranges(NamedTuple):
    """Bounds in tokens, a row of them for each endpoint; NaN where there are no further ones."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


class ContextLength:
    """Prefers endpoints meant for the prompt's length; may drop the others."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._ranges = PerVersion(self._read)

    def keep(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Mask:
        """Who is meant for the length, or says nothing of lengths."""
        low, high = self._of(fleet, rows)
        within = (low <= request.prompt_tokens) & (request.prompt_tokens <= high)
        mask: Mask = within.any(axis=1) | np.isnan(low[:, 0])
        return mask

    def score(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores:
        """Of several ranges the best one counts."""
        low, high = self._of(fleet, rows)
        tokens = float(request.prompt_tokens)
        width = high - low
        headroom = np.divide(high - tokens, width, out=np.ones_like(width), where=width > 0.0)
        fit = np.where(width > 0.0, 0.7 / (1.0 + width / _WIDE) + 0.3 * headroom, 1.0)
        distance = np.maximum(low - tokens, tokens - high)
        within = distance <= 0.0
        far = OUTSIDE / (1.0 + np.maximum(distance, 0.0) / _FAR)
        scores = np.where(within, OUTSIDE + (1.0 - OUTSIDE) * fit, far)
        best: Scores = np.fmax.reduce(np.where(np.isnan(low), np.nan, scores), axis=1)
        return np.where(np.isnan(best), NEUTRAL, best)

    def _of(self, fleet: Fleet, rows: Rows) -> _Ranges:
        ranges = self._ranges.of(fleet)
        return _Ranges(ranges.low[rows], ranges.high[rows])

    def _read(self, fleet: Fleet) -> _Ranges:
        found = {
            row: _parse(fleet.labels[row].get(self._label, "")) for row in fleet.alive.nonzero()[0].tolist()
        }
        most = max((len(ranges) for ranges in found.values()), default=0)
        bounds = np.full((2, fleet.capacity, max(most, 1)), np.nan)
        for row, ranges in found.items():
            for place, (low, high) in enumerate(ranges):
                bounds[:, row, place] = low, high
        return _Ranges(bounds[0], bounds[1])


def _parse(text: str) -> list[tuple[int, int]]:
    """The ranges of a label; one that cannot be read says nothing."""
    ranges = []
    for part in text.split(",", _MOST_RANGES)[:_MOST_RANGES]:
        match = _RANGE.fullmatch(part)
        if match is None or int(match[1]) > int(match[2]):
            return []
        ranges.append((int(match[1]), int(match[2])))
    return ranges


def _context_length(fields: Fields, _means: Means) -> Plugin:
    lengths = ContextLength(fields.text("label", LABEL))
    filtering = fields.flag("enableFiltering", default=False)
    return Plugin(keep=lengths.keep if filtering else None, score=lengths.score)


CONTEXT_LENGTH = (PluginType("context-length-aware", _context_length),)
