"""Pickers of the llm-d picker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.choosers import NearTies, weighted_random
from scorer.plugins.plugin import Plugin, PluginType

if TYPE_CHECKING:
    from random import Random

    from scorer.contract import Chooser, Scores
    from scorer.document import Fields
    from scorer.plugins.plugin import Means

MOST_ENDPOINTS = 16
"""In one answer: a gateway retries a few times, not dozens."""

max_score: Chooser = NearTies(tolerance=0.0)
"""The best totals in order; equal ones at random."""


def uniform(totals: Scores, count: int, rng: Random, prefer: int) -> list[int]:  # noqa: ARG001 - as Chooser
    """Any, whatever their totals."""
    return rng.sample(range(len(totals)), min(count, len(totals)))


def _picker(name: str, choose: Chooser) -> PluginType:
    def make(fields: Fields, _means: Means) -> Plugin:
        given = fields.node("maxNumOfEndpoints") is not None
        most = fields.integer("maxNumOfEndpoints", 1, 1, MOST_ENDPOINTS)
        return Plugin(choose=choose, most=most if given else None)

    return PluginType(name, make)


CHOOSERS = (
    _picker("max-score-picker", max_score),
    _picker("random-picker", uniform),
    _picker("weighted-random-picker", weighted_random),
)
