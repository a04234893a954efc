"""Scores by hand, and what they do without data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.scorers import (
    IGNORED_AGE,
    TRUSTED_AGE,
    least_load,
    least_work,
    ray_load,
    request_load,
    waiting_tokens,
)
from tests.scorer.support import Asked, all_rows, fleet_of

if TYPE_CHECKING:
    from scorer.fleet import Fleet

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


def test_other_pickers_are_guessed_from_own_numbers_where_no_page_tells() -> None:
    fleet = fleet_of(3, fetched_at=NOW)
    fleet.replicas = 4
    fleet.own[:3] = [2, 2, 2]
    fleet.scraped_load[:3] = [9, 9, np.nan]
    fleet.fetched_at[1] = -np.inf
    # the page tells 9; none is in: three more pickers with 2 each; a page that is in and tells none
    assert request_load(fleet, all_rows(fleet), NOW).tolist() == [11.0, 8.0, 2.0]


def scores(fleet: Fleet, request: Asked) -> list[float]:
    found = least_work(fleet, all_rows(fleet), request, NOW)
    assert found is not None
    return list(found.tolist())


def test_work_is_uncached_tokens_times_the_root_of_requests() -> None:
    fleet = fleet_of(4)
    fleet.own_tokens[:4] = [0, 0, 1000, 0]
    fleet.matched_tokens[:4] = [0, 936, 936, 0]
    fleet.own[:4] = [0, 3, 0, 8]
    # tokens to compute, with 16: 1952, 1016, 2016, 1952; those lost: 936, 0, 0, 936; roots 1, 2, 1, 3
    assert scores(fleet, Asked(prompt_tokens=1936)) == pytest.approx(
        [2016 / 2888, 2016 / 2032, 1, 2016 / 8664]
    )


def test_a_slow_engine_has_as_many_times_more_to_do() -> None:
    fleet = fleet_of(2)
    fleet.slowness[1] = 4.0
    assert scores(fleet, Asked(prompt_tokens=100)) == [1.0, 0.25]


def test_the_cost_of_a_full_cache_climbs_and_is_finite() -> None:
    fleet = fleet_of(6, fetched_at=NOW)
    fleet.kv_usage[:6] = [0.0, 0.8, 0.9, 0.98, 1.0, np.nan]
    assert scores(fleet, Asked(prompt_tokens=100)) == pytest.approx([1, 1, 1 / 1.5, 1 / 5.5, 1 / 5.5, 1])
    fleet.fetched_at[:6] = NOW - IGNORED_AGE
    assert scores(fleet, Asked(prompt_tokens=100)) == [1.0] * 6, "but an old page is no hindrance"


def test_tokens_of_other_pickers_are_guessed() -> None:
    fleet = fleet_of(2)
    fleet.replicas = 2
    fleet.own_tokens[1] = 100
    assert scores(fleet, Asked(prompt_tokens=184)) == [1.0, 0.5]


def test_tokens_of_other_pickers_are_taken_from_pages_where_those_tell() -> None:
    fleet = fleet_of(5, fetched_at=NOW)
    fleet.replicas, fleet.mean_tokens = 4, 200.0
    fleet.own_tokens[:5] = 100.0
    fleet.scraped_load[:5] = [8, 4, 8, 8, np.nan]
    fleet.own_at_page[:5] = [2, 4, 2, 2, 2]
    fleet.queue[:5] = [4, 4, np.nan, 4, np.nan]
    fleet.fetched_at[3] = NOW - IGNORED_AGE
    # Of four that wait three are others', with 200 tokens each, and a quarter of what the guess says: 300;
    # all are ours; a page without a queue, one that is too old, and one that tells nothing: the guess.
    expected = [100 + 0.75 * 600 + 75, 100 + 75, 400, 400, 400]
    assert waiting_tokens(fleet, all_rows(fleet), NOW).tolist() == expected
    fleet.replicas = 1
    assert waiting_tokens(fleet, all_rows(fleet), NOW).tolist() == [100.0] * 5


def test_work_without_any_tokens_is_load() -> None:
    fleet = fleet_of(2, fetched_at=NOW)
    fleet.own[:2] = [3, 1]
    assert scores(fleet, Asked()) == [0.5, 1.0]


def test_before_proxies_work_says_nothing_and_elsewhere_ray_load_does_not() -> None:
    fleet = fleet_of(2, fetched_at=NOW)
    assert ray_load(fleet, all_rows(fleet), Asked(), NOW) is None
    fleet.proxy[1] = True
    assert least_work(fleet, all_rows(fleet), Asked(prompt_tokens=9), NOW) is None


def proxies(size: int) -> Fleet:
    fleet = fleet_of(size, fetched_at=NOW)
    fleet.proxy[:size] = True
    return fleet


def ray_scores(fleet: Fleet) -> list[float]:
    found = ray_load(fleet, all_rows(fleet), Asked(), NOW)
    assert found is not None
    return list(found.tolist())


def test_what_waits_at_a_proxy_counts_twice() -> None:
    fleet = proxies(3)
    fleet.own[:3] = [7, 4, 2]
    fleet.own_at_page[:3] = [7, 8, 2]
    fleet.scraped_load[:3] = [7, 8, 2]
    fleet.queue[:3] = [4, 4, 0]
    # 7 of which 3 are worked on: 11; 4 left, of which all are worked on: 4; 2
    assert ray_scores(fleet) == pytest.approx([3 / 12, 3 / 5, 1])


def test_local_load_decides_between_like_proxies_and_is_the_mean_where_unknown() -> None:
    fleet = proxies(4)
    fleet.local_running[:4] = [1, 5, np.nan, 0]
    fleet.fetched_at[3] = NOW - IGNORED_AGE
    # unknown: the third says nothing, the fourth said it too long ago; both count as (1 + 5) / 2
    assert ray_scores(fleet) == pytest.approx([1, 1.1 / 1.5, 1.1 / 1.3, 1.1 / 1.3])
    fleet.own[:4] = [1, 0, 0, 0]
    assert int(np.argmin(ray_scores(fleet))) == 0


def test_ray_load_is_least_load_where_nobody_says_more() -> None:
    fleet = proxies(2)
    fleet.own[:2] = [1, 0]
    assert ray_scores(fleet) == [0.5, 1.0]


NUMBERS = st.one_of(st.floats(0, 1e9), st.just(np.nan))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6),
            st.floats(0, 1e6),
            NUMBERS,
            NUMBERS,
            NUMBERS,
            st.sampled_from([np.nan, 0.0, 0.5, 0.9, 1.0, 7.0]),
            st.sampled_from([-np.inf, 0.0, 980.0, NOW]),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 10**7),
    st.booleans(),
)
def test_scores_are_numbers_from_0_to_1_whatever_the_columns_hold(
    columns: list[tuple[float, ...]], tokens: int, proxy: bool
) -> None:
    fleet = fleet_of(len(columns))
    for row, (own, own_tokens, scraped, local, queue, kv_usage, fetched_at) in enumerate(columns):
        fleet.own[row], fleet.own_tokens[row], fleet.scraped_load[row] = own, own_tokens, scraped
        fleet.local_running[row], fleet.queue[row], fleet.kv_usage[row] = local, queue, kv_usage
        fleet.fetched_at[row], fleet.proxy[row] = fetched_at, proxy
    rows = all_rows(fleet)
    assert (request_load(fleet, rows, NOW) >= fleet.own[rows]).all()
    for scorer in (least_load, ray_load if proxy else least_work):
        found = scorer(fleet, rows, Asked(prompt_tokens=tokens), NOW)
        assert found is not None
        assert found.shape == rows.shape
        assert (found >= 0).all()
        assert found.max() == 1.0
