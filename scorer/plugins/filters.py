"""Filters of the llm-d picker. Formulas and parameters are documented in docs/policies.md.

Sources: the plugins of the same names in llm-d-router 0.10.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scorer.document import shown
from scorer.plugins.columns import PerVersion, labelled, own_requests
from scorer.plugins.plugin import Plugin, PluginType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from numpy.typing import NDArray

    from scorer.contract import Filter, Mask, Request, Rows, Scores
    from scorer.document import Fields
    from scorer.fleet import Fleet
    from scorer.plugins.plugin import Means

ROLE_LABEL = "llm-d.ai/role"
_ALL_ROLES = "encode-prefill-decode"
_ROLES = {
    "encode-filter": frozenset({"encode", "encode-prefill", _ALL_ROLES}),
    "prefill-filter": frozenset({"prefill", "encode-prefill", "prefill-decode", _ALL_ROLES, "both"}),
    "decode-filter": frozenset({"decode", "prefill-decode", _ALL_ROLES, "both"}),
}
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
IN_FLIGHT_PRODUCER = "inflight-load-producer"
PREFIX_PRODUCER = "approx-prefix-cache-producer"


class LabelFilter:
    """Keeps endpoints whose labels are such, looked at once per change of the pool."""

    def __init__(self, admits: Callable[[Mapping[str, str]], bool]) -> None:
        self._mask = PerVersion(lambda fleet: labelled(fleet, admits))

    def keep(self, fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Mask:
        """See :data:`scorer.contract.Filter`."""
        return self._mask.of(fleet)[rows]


class Requirement(NamedTuple):
    """One condition of a Kubernetes label selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def admits(self, labels: Mapping[str, str]) -> bool:
        """As Kubernetes does: an absent key fulfils NotIn."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


def _label_selector(fields: Fields, _means: Means) -> Plugin:
    requirements = []
    for key, node in fields.map("matchLabels").items():
        if not isinstance(node.value, str):
            raise fields.error(f"{shown(key)} is not a text; put it in quotes", "matchLabels")
        requirements.append(Requirement(key, "In", frozenset({node.value})))
    for expression in fields.mappings("matchExpressions"):
        operator = expression.needed("operator", _OPERATORS)
        values = frozenset(expression.texts("values"))
        if bool(values) != (operator in _OPERATORS[:2]):
            needs = "needs" if operator in _OPERATORS[:2] else "takes no"
            raise expression.error(f"with the operator {operator} {needs} values")
        requirements.append(Requirement(expression.needed("key"), operator, values))
    fields.note("matchLabels", tuple(requirements))
    return Plugin(keep=LabelFilter(lambda labels: all(one.admits(labels) for one in requirements)).keep)


def _by_label(fields: Fields, _means: Means) -> Plugin:
    label = fields.needed("label")
    values = frozenset(fields.texts("validValues"))
    unlabelled = fields.flag("allowsNoLabel", default=False)
    if not values and not unlabelled:
        raise fields.error("has neither validValues nor allowsNoLabel: nobody could stay")
    return Plugin(keep=_valued(label, values, unlabelled=unlabelled))


def _role(name: str) -> PluginType:
    # Pods without the label are decode servers: pools that are not split up need no labels.
    keep = _valued(ROLE_LABEL, _ROLES[name], unlabelled=name == "decode-filter")
    return PluginType(name, lambda _fields, _means: Plugin(keep=keep))


def _valued(label: str, values: frozenset[str], *, unlabelled: bool) -> Filter:
    return LabelFilter(lambda labels: labels[label] in values if label in labels else unlabelled).keep


_MEASURES: dict[str, Callable[[Fleet, Rows], NDArray[np.float64]]] = {
    "active-requests": own_requests,
    "running-requests": lambda fleet, rows: fleet.running[rows],
    "waiting-queue": lambda fleet, rows: fleet.queue[rows],
    "kv-cache-utilization": lambda fleet, rows: fleet.kv_usage[rows],
}


class UtilizationFilter:
    """Drops endpoints with any measure above its limit; what is not said is 0."""

    def __init__(self, limits: tuple[tuple[str, float], ...], *, fallback: bool) -> None:
        self._limits = tuple((_MEASURES[metric], most) for metric, most in limits)
        self._fallback = fallback

    def keep(self, fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Mask:
        """See :data:`scorer.contract.Filter`."""
        mask = np.ones(len(rows), dtype=np.bool_)
        for measure, most in self._limits:
            mask &= ~(measure(fleet, rows) > most)  # NaN > most is False
        if self._fallback and not mask.any():
            mask[:] = True
        return mask


def _utilization(fields: Fields, _means: Means) -> Plugin:
    limits = []
    for condition in fields.mappings("conditions"):
        metric = condition.needed("metric", tuple(_MEASURES))
        if condition.node("maxValue") is None:
            raise condition.error("has no 'maxValue'")
        limits.append((metric, condition.number("maxValue", 0.0)))
    if not limits:
        raise fields.error("has no 'conditions'")
    fields.reference("inFlightLoadProducerName", IN_FLIGHT_PRODUCER)
    fallback = fields.flag("fallbackOnEmpty", default=False)
    return Plugin(keep=UtilizationFilter(tuple(limits), fallback=fallback).keep)


class PrefixAffinityFilter:
    """Keeps endpoints that hold most of the prompt, as long as these are not much slower than others."""

    def __init__(
        self, threshold: float, exploration: float, most_wait: float, throughput: float, rng: Random
    ) -> None:
        self._threshold = threshold
        self._exploration = exploration
        self._most_tokens = most_wait * throughput
        """What a sticky endpoint may be behind by; 0 for any amount."""
        self._random = rng

    def keep(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Mask:
        """See :data:`scorer.contract.Filter`."""
        everybody = np.ones(len(rows), dtype=np.bool_)
        if not request.prompt_tokens or (self._exploration and self._random.random() < self._exploration):
            return everybody
        sticky = fleet.matched_tokens[rows] >= self._threshold * request.prompt_tokens
        held = np.count_nonzero(sticky)
        if not held or held == len(rows):
            return everybody
        tokens = fleet.own_tokens[rows]
        if self._most_tokens and tokens[sticky].min() - tokens[~sticky].min() > self._most_tokens:
            return everybody
        return sticky


def _prefix_affinity(fields: Fields, means: Means) -> Plugin:
    source = fields.text("ttftSource", "prefillThroughput", ("prefillThroughput", "latencyPredictor"))
    if source == "latencyPredictor":
        raise fields.error(
            "latencyPredictor needs a predictor beside the picker, which is not asked here; remove the line",
            "ttftSource",
        )
    fields.reference("prefixMatchInfoProducerName", PREFIX_PRODUCER)
    fields.reference("inFlightLoadProducerName", IN_FLIGHT_PRODUCER)
    affinity = PrefixAffinityFilter(
        fields.number("affinityThreshold", 0.8, 0.0, 1.0),
        fields.number("explorationProbability", 0.0, 0.0, 1.0),
        fields.number("maxTTFTPenaltyMs", 18_000.0) / 1000.0,
        fields.number("peakPrefillThroughput", 15_928.0, 1.0),
        means.random,
    )
    return Plugin(keep=affinity.keep, uses_prefix=True)


TESTING_HEADER = "test-epp-endpoint-selection"
_BODILESS = ("GET", "HEAD", "OPTIONS")
_MOST_NAMED = 64
DOMINATING = 1e6
"""A weight that no sum of other scores outweighs."""


class TestingFilter:
    """Keeps the endpoints that a header names, and prefers them in its order."""

    __test__ = False  # not one of pytest

    def __init__(self) -> None:
        self._rows = PerVersion(_rows_by_name)

    def keep(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Mask:
        """See :data:`scorer.contract.Filter`."""
        if request.method in _BODILESS:
            return np.ones(len(rows), dtype=np.bool_)
        return np.isin(rows, np.array(self._named(fleet, request), dtype=np.intp))

    def score(self, fleet: Fleet, rows: Rows, request: Request, _now: float) -> Scores:
        """See :data:`scorer.contract.Scorer`."""
        scores = np.zeros(len(rows))
        named = self._named(fleet, request)
        for place, row in enumerate(named):
            scores[rows == row] = 1.0 - place / len(named)
        return scores

    def _named(self, fleet: Fleet, request: Request) -> list[int]:
        known = self._rows.of(fleet)
        entries = request.headers.get(TESTING_HEADER, "").split(",", _MOST_NAMED)[:_MOST_NAMED]
        found = (known.get(_canonical(entry.strip())) for entry in entries)
        return list(dict.fromkeys(row for row in found if row is not None))


def _rows_by_name(fleet: Fleet) -> dict[str, int]:
    """Rows by address and by IP alone, of which the first endpoint counts."""
    rows: dict[str, int] = {}
    for row in fleet.alive.nonzero()[0].tolist():
        address = _canonical(fleet.addresses[row])
        rows[address] = row
        rows.setdefault(_canonical(address.rpartition(":")[0]), row)
    return rows


def _canonical(name: str) -> str:
    """One spelling for ``ip``, ``ip:port``, ``[ip]`` and ``[ip]:port``."""
    if name.startswith("["):
        host, _, port = name[1:].partition("]")
    elif name.count(":") == 1:
        host, _, port = name.partition(":")
        port = f":{port}"
    else:
        host, port = name, ""
    try:
        host = ipaddress.ip_address(host).compressed
    except ValueError:
        host = host.lower()
    return f"[{host}]{port}"


def _testing(_fields: Fields, _means: Means) -> Plugin:
    testing = TestingFilter()
    return Plugin(
        keep=testing.keep,
        score=testing.score,
        weight=DOMINATING,
        warning=f"clients choose their endpoint by the header {TESTING_HEADER}; this is for tests only",
    )


FILTERS = (
    PluginType("label-selector-filter", _label_selector),
    PluginType("by-label-selector", _label_selector),
    PluginType("by-label", _by_label),
    *(_role(name) for name in _ROLES),
    PluginType("utilization-filter", _utilization),
    PluginType("prefix-cache-affinity-filter", _prefix_affinity),
    PluginType("header-based-testing-filter", _testing),
)
