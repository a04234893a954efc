"""Ties are drawn, the clearly best is taken, fallbacks follow in order."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.choosers import NearTies, weighted_random
from scorer.draws import Draws

if TYPE_CHECKING:
    from scorer.contract import Chooser

NOBODY = -1
CHOOSERS = pytest.mark.parametrize("chooser", [NearTies(), NearTies(0.5), weighted_random])


def test_the_clearly_best_is_always_taken() -> None:
    totals = np.array([0.5, 0.9, 0.8])
    assert {NearTies()(totals, 1, Random(seed), NOBODY)[0] for seed in range(50)} == {1}


def test_near_ties_have_the_same_chance() -> None:
    rng = Random(1)
    totals = np.array([0.9, 1.0, 0.2, 0.95])
    counts = Counter(NearTies(0.15)(totals, 1, rng, NOBODY)[0] for _ in range(3000))
    assert set(counts) == {0, 1, 3}
    for place in counts:
        assert counts[place] == pytest.approx(1000, rel=0.15)


def test_draws_are_those_of_the_source_and_are_noted() -> None:
    draws = Draws(Random(1))
    source = Random(1)
    numbers = [source.random() for _ in range(4)]
    assert [draws.random(), draws.random()] == numbers[:2]
    assert 0 <= draws.randrange(10) < 10
    assert draws.choice("abc") in "abc"
    assert draws.drawn == numbers


def test_fallbacks_follow_best_first() -> None:
    totals = np.array([0.2, 1.0, 0.6, 0.0])
    assert NearTies()(totals, 9, Random(1), NOBODY) == [1, 2, 0, 3]
    assert NearTies()(totals, 2, Random(1), NOBODY) == [1, 2]


def test_fallbacks_among_equals_are_not_always_the_same() -> None:
    orders = {tuple(NearTies()(np.ones(3), 2, Random(seed), NOBODY)) for seed in range(60)}
    assert len(orders) == 6


def test_the_preferred_one_wins_ties_only() -> None:
    assert NearTies()(np.array([1.0, 1.0, 1.0]), 1, Random(1), 2) == [2]
    assert NearTies()(np.array([1.0, 1.0, 0.9]), 2, Random(1), 2)[0] != 2
    assert weighted_random(np.array([1.0, 1.0, 1.0]), 1, Random(1), 2) == [2]


def test_weighted_random_uses_all_in_proportion() -> None:
    rng = Random(1)
    counts = Counter(weighted_random(np.array([1.0, 2.0, 0.0]), 1, rng, NOBODY)[0] for _ in range(3000))
    assert set(counts) == {0, 1}
    assert counts[1] == pytest.approx(2000, rel=0.1)


def test_a_draw_at_the_very_end_stays_inside() -> None:
    class End(Random):
        def random(self) -> float:
            return 1.0

    assert weighted_random(np.array([0.5, 0.5, 0.0]), 1, End(), NOBODY) == [1]


@CHOOSERS
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=12),
    st.integers(1, 15),
    st.integers(0, 2**32),
    st.integers(-1, 11),
)
def test_any_totals_give_as_many_distinct_places_as_wanted(
    chooser: Chooser, totals: list[float], count: int, seed: int, prefer: int
) -> None:
    prefer = min(prefer, len(totals) - 1)
    places = chooser(np.array(totals), count, Random(seed), prefer)
    assert len(places) == len(set(places)) == min(count, len(totals))
    assert all(0 <= place < len(totals) for place in places)
