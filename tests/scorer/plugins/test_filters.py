"""The compatible filters: whom they keep, on small fleets."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from scorer.document import PolicyError
from scorer.plugins.plugin import Means
from tests.scorer.plugins.support import fleet, kept, plugin, scores
from tests.scorer.support import Asked

LABELS: tuple[dict[str, str], ...] = ({"app": "a", "tier": "gpu"}, {"app": "b"}, {"tier": "cpu"}, {})


@pytest.mark.parametrize(
    ("selector", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"matchLabels": {"app": "a"}}, [0]),
        ({"matchLabels": {"app": "a", "tier": "cpu"}}, []),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, [0, 1]),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, [1, 2, 3]),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, [0, 2]),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, [1, 3]),
        (
            {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]},
            [0],
        ),
    ],
)
@pytest.mark.parametrize("name", ["label-selector-filter", "by-label-selector"])
def test_label_selector(name: str, selector: dict[str, Any], rows: list[int]) -> None:
    assert kept(plugin(name, **selector), fleet(4, LABELS)) == rows


def test_a_label_filter_follows_the_pool() -> None:
    pool = fleet(2, LABELS[:2])
    selector = plugin("label-selector-filter", matchLabels={"app": "a"})
    assert kept(selector, pool) == [0]
    pool.relabel(pool.slot_at(1), {"app": "a"})
    for number in range(20):
        pool.add(f"10.1.0.{number}:80", {"app": "a"})
    pool.remove(pool.slot_at(0))
    assert kept(selector, pool) == list(range(1, 22))


def test_by_label() -> None:
    pool = fleet(4, LABELS)
    assert kept(plugin("by-label", label="tier", validValues=["gpu"]), pool) == [0]
    assert kept(plugin("by-label", label="tier", validValues=["gpu"], allowsNoLabel=True), pool) == [0, 1, 3]


ROLES = ("encode", "prefill", "decode", "encode-prefill", "prefill-decode", "encode-prefill-decode", "both")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("encode-filter", [0, 3, 5]),
        ("prefill-filter", [1, 3, 4, 5, 6]),
        ("decode-filter", [2, 4, 5, 6, 7]),
    ],
)
def test_roles(name: str, rows: list[int]) -> None:
    labels = (*({"llm-d.ai/role": role} for role in ROLES), {}, {"llm-d.ai/role": "other"})
    assert kept(plugin(name), fleet(9, labels)) == rows


def test_utilization() -> None:
    pool = fleet(4, queue=[0, 6, 5, math.nan], own=[1, 0, 9, 0], kv_usage=[0.95, 0.1, 0.1, math.nan])
    queue = {"metric": "waiting-queue", "maxValue": 5}
    kv = {"metric": "kv-cache-utilization", "maxValue": 0.9}
    active = {"metric": "active-requests", "maxValue": 8}
    assert kept(plugin("utilization-filter", conditions=[queue]), pool) == [0, 2, 3]
    assert kept(plugin("utilization-filter", conditions=[queue, kv, active]), pool) == [3]
    nobody = [{"metric": "active-requests", "maxValue": 0}, {"metric": "waiting-queue", "maxValue": 0}]
    pool.own[3] = 1
    assert kept(plugin("utilization-filter", conditions=nobody), pool) == []
    assert kept(plugin("utilization-filter", conditions=nobody, fallbackOnEmpty=True), pool) == [0, 1, 2, 3]


PROMPT = Asked(prompt_tokens=1000)


def test_prefix_affinity_keeps_who_holds_most_of_the_prompt() -> None:
    pool = fleet(3, matched_tokens=[800, 799, 1000])
    assert kept(plugin("prefix-cache-affinity-filter"), pool, PROMPT) == [0, 2]
    assert kept(plugin("prefix-cache-affinity-filter", affinityThreshold=0.9), pool, PROMPT) == [2]
    assert kept(plugin("prefix-cache-affinity-filter"), pool, Asked()) == [0, 1, 2]
    cold = fleet(3, matched_tokens=[0, 500, 0])
    assert kept(plugin("prefix-cache-affinity-filter"), cold, PROMPT) == [0, 1, 2]


def test_prefix_affinity_ends_where_the_sticky_ones_are_behind_by_too_much() -> None:
    pool = fleet(3, matched_tokens=[1000, 1000, 0], own_tokens=[9000, 6001, 1000])
    # The best sticky one is behind by 5,001 tokens, at 1,000 tokens/s these are 5,001 ms.
    at = {"peakPrefillThroughput": 1000}
    assert kept(plugin("prefix-cache-affinity-filter", maxTTFTPenaltyMs=5000, **at), pool, PROMPT) == [
        0,
        1,
        2,
    ]
    assert kept(plugin("prefix-cache-affinity-filter", maxTTFTPenaltyMs=5001, **at), pool, PROMPT) == [0, 1]
    assert kept(plugin("prefix-cache-affinity-filter", maxTTFTPenaltyMs=0, **at), pool, PROMPT) == [0, 1]


def test_prefix_affinity_explores() -> None:
    pool = fleet(2, matched_tokens=[1000, 0])
    curious = plugin("prefix-cache-affinity-filter", Means(random=Random(1)), explorationProbability=0.25)
    everybody = [kept(curious, pool, PROMPT) == [0, 1] for _ in range(1000)]
    assert 200 < sum(everybody) < 300


def asking(entries: str, method: str = "POST") -> Asked:
    return Asked(method=method, headers={"test-epp-endpoint-selection": entries})


@pytest.mark.parametrize(
    ("entries", "rows"),
    [
        ("10.0.0.3, 10.0.0.1:8000", [2, 0]),
        ("10.0.0.2:8000,10.0.0.2,10.0.0.2:8000", [1]),
        ("10.0.0.2:9000,192.0.2.1", []),
        ("10.0.0.4,10.0.0.2", [1]),
        ("nonsense,,[,10.0.0.2", [1]),
        ("  ", []),
    ],
)
def test_the_testing_filter_keeps_whom_the_header_names_in_its_order(entries: str, rows: list[int]) -> None:
    testing, pool = plugin("header-based-testing-filter"), fleet(3)
    assert kept(testing, pool, asking(entries)) == sorted(rows)
    order = scores(testing, pool, asking(entries))
    assert sorted(rows, key=lambda row: -order[row]) == rows
    assert "tests only" in testing.warning


def test_the_testing_filter_without_a_header_keeps_nobody_but_for_requests_without_a_body() -> None:
    testing, pool = plugin("header-based-testing-filter"), fleet(2)
    assert kept(testing, pool) == []
    assert kept(testing, pool, Asked(method="GET")) == [0, 1]


def test_the_testing_filter_takes_brackets() -> None:
    pool = fleet(1)
    pool.add("[fd00::1]:3000")
    pool.add("[fd00::1]:3002")
    testing = plugin("header-based-testing-filter")
    for entry in ("[fd00::1]:3000", "[FD00:0::1]", "fd00::1"):
        assert kept(testing, pool, asking(entry)) == [1]
    assert kept(testing, pool, asking("[fd00::1]:3002")) == [2]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("by-label", {}, "parameters has no 'label'"),
        ("by-label", {"label": "a"}, "has neither validValues nor allowsNoLabel"),
        ("label-selector-filter", {"matchLabels": {"a": 1}}, "parameters.matchLabels 'a' is not a text"),
        (
            "label-selector-filter",
            {"matchLabel": {}},
            "unknown field 'matchLabel'; did you mean 'matchLabels'?",
        ),
        (
            "label-selector-filter",
            {"matchExpressions": [{"key": "a", "operator": "in"}]},
            "parameters.matchExpressions[0].operator 'in' is unknown; there are only In, NotIn, Exists",
        ),
        (
            "label-selector-filter",
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "with the operator In needs values",
        ),
        (
            "label-selector-filter",
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            "with the operator Exists takes no values",
        ),
        ("utilization-filter", {}, "has no 'conditions'"),
        ("utilization-filter", {"conditions": [{"metric": "waiting-queue"}]}, "has no 'maxValue'"),
        ("utilization-filter", {"conditions": {}}, "parameters.conditions is not a list"),
        ("prefix-cache-affinity-filter", {"ttftSource": "latencyPredictor"}, "needs a predictor"),
        ("prefix-cache-affinity-filter", {"affinityThreshold": 1.5}, "1.5 is out of bounds; give a number"),
        (
            "prefix-cache-affinity-filter",
            {"affinityThreshold": "1"},
            "'1' is not a number; write one without",
        ),
        ("decode-filter", {"x": 1}, "parameters has an unknown field 'x'; there are none"),
    ],
)
def test_what_parameters_may_not_be(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        plugin(name, **parameters)
    assert message in str(caught.value)
