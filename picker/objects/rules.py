"""Which model a request is to ask for, and how urgent it is: InferenceModelRewrite and InferenceObjective.

Precedence is that of the API: a rule that names the model beats a generic one; among equals the one of
the oldest object, then the first in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from picker.inference.reading import LONGEST_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from picker.inference.question import Question

# The second name of each is the legacy one; the first wins.
OBJECTIVE_HEADERS: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
REWRITE_HEADERS: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")


@dataclass(frozen=True, slots=True)
class Target:
    """A model to ask for, and its share of the requests (``None``: not said)."""

    model: str
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """The models it is for (none: for all, and for requests that name none), and what they become."""

    models: tuple[str, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """An InferenceModelRewrite. ``created`` in seconds since 1970; one without a time counts as youngest."""

    name: str
    rules: tuple[Rule, ...]
    created: float = math.inf


@dataclass(frozen=True, slots=True)
class Objective:
    """An InferenceObjective. A higher priority goes first; one below zero may be shed."""

    name: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ObjectSet:
    """All objects of a pool, in the order they were given."""

    rewrites: tuple[ModelRewrite, ...] = ()
    objectives: tuple[Objective, ...] = ()


class Objects:
    """The objects in force, ready to be applied to requests."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.replace(ObjectSet())

    def replace(self, objects: ObjectSet) -> None:
        """Put other objects in force. Requests that were resolved already keep what they got."""
        self._priorities = {objective.name: objective.priority for objective in objects.objectives}
        self._exact: dict[str, _Draw] = {}
        self._generic: _Draw | None = None
        for rewrite in sorted(objects.rewrites, key=lambda rewrite: rewrite.created):
            for rule in rewrite.rules:
                draw = _Draw(rule.targets, rewrite.name)
                for model in rule.models:
                    self._exact.setdefault(model, draw)
                if not rule.models and self._generic is None:
                    self._generic = draw
        draws = [*self._exact.values(), *([self._generic] if self._generic is not None else [])]
        self._names = frozenset(self._exact).union(*(draw.models for draw in draws))

    def names(self, model: str) -> bool:
        """Whether any rule is for this model or asks for it."""
        return model in self._names

    def rewrite_of(self, model: str, target: str) -> str:
        """The name of the object whose rule makes one model the other; empty if a header did."""
        draw = self._exact.get(model, self._generic)
        return draw.rewrite if draw is not None and target in draw.models else ""

    def resolve(self, question: Question) -> None:
        """Set the question's priority, and the model to ask for.

        That may be one where the request names none. Whether it can be written into the body is for the
        session to find out.
        """
        headers = question.headers
        question.priority = self._priorities.get(_said(headers, OBJECTIVE_HEADERS), 0)
        question.model = self._target(_said(headers, REWRITE_HEADERS) or question.model)

    def _target(self, model: str) -> str:
        draw = self._exact.get(model, self._generic)
        return model if draw is None else draw.model(self._rng)


class _Draw:
    """The targets of a rule, drawn by weight; alike if none has one. Beside weights, one without has none."""

    __slots__ = ("_cumulative", "models", "rewrite")

    def __init__(self, targets: Sequence[Target], rewrite: str) -> None:
        self.rewrite = rewrite
        weights = {target: target.weight or 0 for target in targets}
        if not any(weights.values()):
            weights = dict.fromkeys(targets, 1)
        drawn = [target for target in targets if weights[target]]
        self.models = [target.model for target in drawn]
        self._cumulative = list(accumulate(weights[target] for target in drawn))

    def model(self, rng: Random) -> str:
        if len(self.models) == 1:
            return self.models[0]
        return rng.choices(self.models, cum_weights=self._cumulative)[0]


def _said(headers: Mapping[str, str], names: Sequence[str]) -> str:
    """The value of the first of the headers that has one; what is too long to be a name is none."""
    for name in names:
        value = headers.get(name, "").strip()
        if value:
            return value if len(value) <= LONGEST_NAME else ""
    return ""
