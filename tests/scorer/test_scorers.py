"""Scores by hand, and what they do without data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.scorers import IGNORED_AGE, TRUSTED_AGE, least_load, local_load, request_load, token_load
from tests.scorer.support import Asked, all_rows, fleet_of

NOW = 1000.0


def test_load_is_own_and_what_a_page_shows_beyond_own_at_its_time() -> None:
    fleet = fleet_of(3, fetched_at=NOW)
    fleet.own[:3] = [4, 1, 0]
    fleet.untracked[:3] = [0, 2, 0]
    fleet.scraped_load[:3] = [10, 1, 5]
    fleet.own_at_page[:3] = [6, 3, 0]
    # own 4 and 10 - 6 others; own 1 and 2 untracked, the page shows fewer than own; 5 others
    assert request_load(fleet, all_rows(fleet), NOW).tolist() == [8.0, 3.0, 5.0]
    # the least load is 3, so 3 + 1 over each load + 1
    assert least_load(fleet, all_rows(fleet), Asked(), NOW) == pytest.approx([4 / 9, 1, 4 / 6])


@pytest.mark.parametrize(
    ("age", "share"),
    [
        (0.0, 1.0),
        (TRUSTED_AGE, 1.0),
        ((TRUSTED_AGE + IGNORED_AGE) / 2, 0.5),
        (IGNORED_AGE, 0.0),
        (1e6, 0.0),
        (np.inf, 0.0),
        (-1.0, 1.0),
    ],
)
def test_a_page_is_trusted_then_discounted_then_ignored(age: float, share: float) -> None:
    fleet = fleet_of(1, fetched_at=NOW - age)
    fleet.own[0] = 2
    fleet.scraped_load[0] = 10
    assert request_load(fleet, all_rows(fleet), NOW).tolist() == pytest.approx([2 + share * 10])


def test_a_page_that_says_no_load_adds_nothing() -> None:
    fleet = fleet_of(2, fetched_at=NOW)
    fleet.own[:2] = [3, 1]
    assert least_load(fleet, all_rows(fleet), Asked(), NOW).tolist() == [0.5, 1.0]


def test_token_load_counts_the_request_itself() -> None:
    fleet = fleet_of(2)
    fleet.own_tokens[:2] = [0, 300]
    # 100 over 400, each with the 99 of the request and 1
    assert token_load(fleet, all_rows(fleet), Asked(prompt_tokens=99), NOW).tolist() == [1.0, 0.25]


def test_token_load_is_neutral_where_nobody_has_tokens() -> None:
    fleet = fleet_of(2)
    assert token_load(fleet, all_rows(fleet), Asked(), NOW).tolist() == [1.0, 1.0]
    assert token_load(fleet, all_rows(fleet), Asked(prompt_tokens=500), NOW).tolist() == [1.0, 1.0]


def test_local_load_takes_the_mean_for_what_is_not_known() -> None:
    fleet = fleet_of(4, fetched_at=NOW)
    fleet.local_running[:4] = [1, 5, np.nan, 0]
    fleet.fetched_at[3] = NOW - IGNORED_AGE
    # unknown: the third says nothing, the fourth said it too long ago; both count as (1 + 5) / 2
    assert local_load(fleet, all_rows(fleet), Asked(), NOW) == pytest.approx([1, 2 / 6, 2 / 4, 2 / 4])


def test_local_load_is_neutral_where_nobody_says() -> None:
    fleet = fleet_of(2, fetched_at=NOW)
    assert local_load(fleet, all_rows(fleet), Asked(), NOW).tolist() == [1.0, 1.0]


NUMBERS = st.one_of(st.floats(0, 1e9), st.just(np.nan))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6),
            st.floats(0, 1e6),
            NUMBERS,
            NUMBERS,
            st.sampled_from([-np.inf, 0.0, 980.0, NOW]),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 10**7),
)
def test_scores_are_numbers_from_0_to_1_whatever_the_columns_hold(
    columns: list[tuple[float, float, float, float, float]], tokens: int
) -> None:
    fleet = fleet_of(len(columns))
    for row, (own, own_tokens, scraped, local, fetched_at) in enumerate(columns):
        fleet.own[row], fleet.own_tokens[row], fleet.scraped_load[row] = own, own_tokens, scraped
        fleet.local_running[row], fleet.fetched_at[row] = local, fetched_at
    rows = all_rows(fleet)
    assert (request_load(fleet, rows, NOW) >= fleet.own[rows]).all()
    for scorer in (least_load, token_load, local_load):
        scores = scorer(fleet, rows, Asked(prompt_tokens=tokens), NOW)
        assert scores.shape == rows.shape
        assert (scores >= 0).all()
        assert scores.max() == 1.0
