"""What time a page speaks of is learned from when its values change."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from picker.metrics.freshness import Freshness


def test_live_pages_speak_of_the_moment_they_were_asked_for() -> None:
    freshness = Freshness(max_lag=0.0)
    assert [freshness.page_time(0, sent) for sent in (1.0, 2.0, 3.0)] == [1.0, 2.0, 3.0]


def test_the_first_page_may_be_as_old_as_can_be() -> None:
    assert Freshness(max_lag=10.0).page_time(7, 100.0) == 90.0


def test_a_page_that_changed_is_new_and_ages_until_the_next_change() -> None:
    freshness = Freshness(max_lag=10.0)
    times = [
        freshness.page_time(marker, sent) for marker, sent in [(1, 100.0), (2, 101.0), (2, 102.0), (2, 109.0)]
    ]
    assert times == [90.0, 101.0, 101.0, 101.0]
    assert freshness.page_time(3, 110.0) == 110.0


def test_after_a_long_gap_a_changed_page_may_be_as_old_as_the_fetch_before() -> None:
    freshness = Freshness(max_lag=10.0)
    times = [freshness.page_time(marker, sent) for marker, sent in [(1, 100.0), (2, 104.0), (3, 105.0)]]
    assert times == [90.0, 100.0, 105.0]


def test_a_page_that_never_changes_is_never_older_than_the_greatest_lag() -> None:
    freshness = Freshness(max_lag=10.0)
    freshness.page_time(1, 100.0)
    freshness.page_time(2, 101.0)
    assert freshness.page_time(2, 150.0) == 140.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 5)), max_size=20))
def test_page_time_never_goes_back_and_keeps_within_the_lag(pages: list[tuple[int, float]]) -> None:
    freshness = Freshness(max_lag=3.0)
    now, last = 0.0, float("-inf")
    for marker, step in pages:
        now += step
        page_time = freshness.page_time(marker, now)
        assert now - 3.0 <= page_time <= now
        assert page_time >= last
        last = page_time
