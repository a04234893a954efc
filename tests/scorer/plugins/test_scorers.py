"""The compatible scorers on small fleets, their scores computed by hand from the published formulas."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.plugins.context_length import CONTEXT_LENGTH
from scorer.plugins.scorers import SCORERS
from tests.scorer.plugins.support import NOW, fleet, plugin, scores
from tests.scorer.support import Asked, all_rows

if TYPE_CHECKING:
    from scorer.fleet import Fleet

NAN = math.nan


def test_queue() -> None:
    queue = plugin("queue-scorer")
    assert scores(queue, fleet(3, queue=[0, 5, 10])) == [1.0, 0.5, 0.0]
    assert scores(queue, fleet(4, queue=[3, 11, 5, 7])) == [1.0, 0.0, 0.75, 0.5]
    assert scores(queue, fleet(2, queue=[7, 7])) == [1.0, 1.0]
    assert scores(queue, fleet(1, queue=[9])) == [1.0]


def test_running_requests() -> None:
    running = plugin("running-requests-size-scorer")
    assert scores(running, fleet(3, running=[2, 4, 10])) == [1.0, 0.75, 0.0]
    assert scores(running, fleet(2, running=[1, 1])) == [1.0, 1.0]


def test_kv_cache() -> None:
    kv = plugin("kv-cache-utilization-scorer")
    assert scores(kv, fleet(3, kv_usage=[0.0, 0.25, 1.0])) == [1.0, 0.75, 0.0]
    assert scores(kv, fleet(1, kv_usage=[1.2])) == [0.0]


def test_load_aware() -> None:
    queues = fleet(5, queue=[0, 1, 64, 128, 300])
    assert scores(plugin("load-aware-scorer"), queues) == [0.5, 0.496094, 0.25, 0.0, 0.0]
    assert scores(plugin("load-aware-scorer", threshold=10), queues) == [0.5, 0.45, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "column", "nobody", "some"),
    [
        ("queue-scorer", "queue", [1.0, 1.0], [1.0, 0.5, 0.0]),
        ("running-requests-size-scorer", "running", [1.0, 1.0], [1.0, 0.5, 0.0]),
        ("kv-cache-utilization-scorer", "kv_usage", [1.0, 1.0], [1.0, 0.5, 0.0]),
        ("load-aware-scorer", "queue", [0.5, 0.5], [0.5, 0.498047, 0.496094]),
    ],
)
def test_no_news_is_neutral(name: str, column: str, nobody: list[float], some: list[float]) -> None:
    """Who says nothing counts as the mean of the others; where nobody does, all are equal."""
    assert scores(plugin(name), fleet(2, **{column: [NAN, NAN]})) == nobody
    gap = fleet(3, **{column: [0.0, NAN, 1.0]})
    assert scores(plugin(name), gap) == some
    stale = fleet(3, **{column: [0.0, 0.25, 1.0]}, fetched_at=[NOW, NOW - 31, NOW])
    assert scores(plugin(name), stale) == some


def test_lora_affinity() -> None:
    lora = plugin("lora-affinity-scorer")
    four = fleet(4)
    for row, (active, waiting, most) in enumerate(
        [({"a", "b"}, set(), 2), ({"b"}, set(), 2), ({"b", "c"}, {"a"}, 2), ({"b", "c"}, set(), 2)]
    ):
        four.set_models(four.slot_at(row), frozenset(active), frozenset(waiting), most)
    assert scores(lora, four, Asked(model="a")) == [1.0, 0.8, 0.6, 0.0]
    assert scores(lora, four, Asked(model="unheard of")) == [0.0, 0.8, 0.0, 0.0]


def test_lora_affinity_of_engines_that_say_no_maximum() -> None:
    two = fleet(2)
    two.set_models(two.slot_at(0), frozenset({"foo", "sql-lora-1fdg2"}))
    assert scores(plugin("lora-affinity-scorer"), two, Asked(model="sql-lora-1fdg2")) == [1.0, 0.0]


def test_prefix_cache() -> None:
    held = fleet(4, matched_tokens=[0, 64, 128, 256])
    asked = Asked(prompt_tokens=256)
    assert scores(plugin("prefix-cache-scorer"), held, asked) == [0.0, 0.25, 0.5, 1.0]
    assert scores(plugin("prefix-cache-scorer"), held, Asked()) == [0.0, 0.0, 0.0, 0.0]
    long = fleet(3, matched_tokens=[2048, 8192, 16384])
    by_length = plugin("prefix-cache-scorer", matchLengthWeight=0.5)
    # By hand: 0.5 * min(1, matched/8192)^2 + 0.5 * matched/32768
    assert scores(by_length, long, Asked(prompt_tokens=32768)) == [0.0625, 0.625, 0.75]
    scaled = plugin("prefix-cache-scorer", matchLengthWeight=1.0, matchLengthScaleTokens=4096)
    assert scores(scaled, long, Asked(prompt_tokens=32768)) == [0.25, 1.0, 1.0]


def test_no_hit_lru() -> None:
    lru = plugin("no-hit-lru-scorer")
    assert scores(lru, fleet(3, cold_at=[-1, -1, -1])) == [1.0, 0.5, 0.0]
    assert scores(lru, fleet(5, cold_at=[7, -1, 3, -1, 5])) == [0.0, 1.0, 0.5, 0.75, 0.25]
    assert scores(lru, fleet(1, cold_at=[4])) == [1.0]
    assert scores(lru, fleet(3, cold_at=[7, -1, 3], matched_tokens=[0, 64, 0])) == [0.5, 0.5, 0.5]


def test_no_hit_lru_takes_note_of_cold_requests_alone() -> None:
    lru, pool = plugin("no-hit-lru-scorer"), fleet(3)
    assert lru.sent is not None
    for row in (1, 0, 1):
        lru.sent(pool, row, Asked(), NOW)
    assert pool.cold_at[:3].tolist() == [1.0, 2.0, -1.0]
    pool.matched_tokens[0] = 64
    lru.sent(pool, 2, Asked(), NOW)
    assert pool.cold_at[:3].tolist() == [1.0, 2.0, -1.0]


def test_no_hit_lru_remembers_so_many() -> None:
    lru = plugin("no-hit-lru-scorer", lruSize=2)
    # Row 2 had its cold request longest ago and is forgotten, so it is as new as row 1, and behind it.
    assert scores(lru, fleet(4, cold_at=[7, -1, 3, 5])) == [0.0, 1.0, 0.666667, 0.333333]


def test_token_load() -> None:
    loads = fleet(3, own_tokens=[0, 100, 900], matched_tokens=[0, 100, 0])
    load = plugin("token-load-scorer", queueThresholdTokens=1000)
    assert scores(load, loads, Asked(prompt_tokens=200)) == [0.8, 0.8, 0.0]
    assert scores(plugin("token-load-scorer"), fleet(2, own_tokens=[0, 2_097_152])) == [1.0, 0.5]


def test_active_requests() -> None:
    active = fleet(4, own=[0, 2, 3, 8], untracked=[0, 0, 1, 0])
    assert scores(plugin("active-request-scorer"), active) == [1.0, 0.75, 0.5, 0.0]
    lenient = plugin("active-request-scorer", idleThreshold=2, maxBusyScore=0.5)
    assert scores(lenient, active) == [1.0, 1.0, 0.25, 0.0]
    assert scores(plugin("active-request-scorer"), fleet(2)) == [1.0, 1.0]


def test_header_label() -> None:
    zones = fleet(4, ({"zone": "a"}, {"zone": "b"}, {}, {"zone": ""}))
    zone = plugin("header-label-affinity-scorer", headerName="X-Zone", labelKey="zone")
    assert scores(zone, zones, Asked(headers={"x-zone": "b"})) == [0.0, 1.0, 0.0, 0.0]
    assert scores(zone, zones, Asked(headers={"x-zone": "elsewhere"})) == [0.0, 0.0, 0.0, 0.0]
    assert scores(zone, zones, Asked(headers={"x-zone": ""})) == [0.0, 0.0, 0.0, 0.0]
    assert scores(zone, zones) == [0.0, 0.0, 0.0, 0.0]
    zones.relabel(zones.slot_at(2), {"zone": "b"})
    assert scores(zone, zones, Asked(headers={"x-zone": "b"})) == [0.0, 1.0, 1.0, 0.0]


LENGTH = "llm-d.ai/context-length-range"


def test_context_length() -> None:
    ranges = fleet(
        6,
        (
            {LENGTH: "0-2000"},
            {LENGTH: "0-10000"},
            {LENGTH: "4000-8000"},
            {},
            {LENGTH: "1000-1000"},
            {LENGTH: "not a range"},
        ),
    )
    asked = Asked(prompt_tokens=1000)
    # By hand: 0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 1000 / 2000); 0.3 + 0.7 * (0.7 / 2 + 0.3 * 9000 / 10000);
    # 0.3 / (1 + 3000 / 1000); no label 0.5; a range without width 1; unreadable as without label
    assert scores(plugin("context-length-aware"), ranges, asked) == [0.813333, 0.734, 0.075, 0.5, 1.0, 0.5]
    assert plugin("context-length-aware").keep is None


def test_context_length_beyond_all_ranges_goes_by_distance() -> None:
    ranges = fleet(2, ({LENGTH: "0-2048"}, {LENGTH: "0-8192"}))
    # By hand: 0.3 / (1 + 6.952), 0.3 / (1 + 0.808)
    assert scores(plugin("context-length-aware"), ranges, Asked(prompt_tokens=9000)) == [0.037726, 0.165929]


def test_of_several_context_lengths_the_best_counts() -> None:
    ranges = fleet(2, ({"mine": "0-10,900-1100"}, {"mine": "0-10"}))
    # By hand: 0.3 + 0.7 * (0.7 / 1.02 + 0.3 * 0.5); 0.3 / (1 + 0.99)
    asked = Asked(prompt_tokens=1000)
    assert scores(plugin("context-length-aware", label="mine"), ranges, asked) == [0.885392, 0.150754]


COMPATIBLE = {
    one.name: {"headerName": "h", "labelKey": "k"} if one.name.startswith("header-label") else {}
    for one in (*SCORERS, *CONTEXT_LENGTH)
}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_scores_are_in_bounds_whatever_is_in_the_columns(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(COMPATIBLE)))
    size = data.draw(st.integers(1, 5))
    some: Fleet = fleet(size, ({"k": "v", LENGTH: "1-9"},) * size)
    for column in ("queue", "running", "kv_usage", "max_models", "fetched_at"):
        unsaid = -math.inf if column == "fetched_at" else NAN
        values = st.one_of(st.just(unsaid), st.floats(0, 1e6))
        getattr(some, column)[:size] = data.draw(st.lists(values, min_size=size, max_size=size))
    for column in ("own", "own_tokens", "matched_tokens", "cold_at"):
        values = st.floats(0, 1e9)
        getattr(some, column)[:size] = data.draw(st.lists(values, min_size=size, max_size=size))
    asked = Asked(prompt_tokens=data.draw(st.integers(0, 10**7)), headers={"h": "v"})
    score = plugin(name, **COMPATIBLE[name]).score
    assert score is not None
    given_scores = score(some, all_rows(some), asked, NOW)
    assert given_scores is not None
    assert given_scores.shape == (size,)
    assert np.all((given_scores >= 0.0) & (given_scores <= 1.0)), given_scores
