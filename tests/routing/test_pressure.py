"""Full is not dead: an endpoint that refuses for lack of room is left alone for a while."""

from __future__ import annotations

import math

import pytest

from picker.routing.decision import Cause, Outcome
from tests.routing.support import FULL, OK, Pool


def full_for(pool: Pool, number: int = 1) -> float:
    return float(pool.fleet.full_until[pool.slot(number).row]) - pool.now


def refuse(pool: Pool, retry_after: float | None = None) -> float:
    """Endpoint 1 refuses a request that is sent now; how long it is left alone then."""
    pool.answer(1, Outcome(Cause.COMPLETE, 503, back_pressure=True, retry_after=retry_after), after=0.0)
    return full_for(pool)


@pytest.mark.parametrize(
    ("asked", "held"),
    [(None, 0.25), (2.0, 2.0), (0.0, 0.05), (-5.0, 0.05), (3600.0, 10.0), (math.inf, 10.0), (math.nan, 0.05)],
)
def test_it_is_left_alone_as_long_as_it_asks_within_bounds(asked: float | None, held: float) -> None:
    pool = Pool(2)
    assert refuse(pool, asked) == pytest.approx(held)
    assert pool.first_choices() == {"10.0.0.2:80"}
    pool.now += held
    assert "10.0.0.1:80" in pool.first_choices()


def test_the_time_grows_while_it_refuses_right_after() -> None:
    pool = Pool(2)
    for held in (0.25, 0.5, 1.0, 2.0, 4.0, 4.0):
        assert refuse(pool) == pytest.approx(held)
        pool.now += held


def test_a_burst_that_was_under_way_is_refused_as_one() -> None:
    pool = Pool(2)
    burst = [pool.send_to(1) for _ in range(20)]
    for ticket in burst:
        pool.router.ended(ticket, FULL, pool.now)
    assert full_for(pool) == pytest.approx(0.25)


def test_a_success_after_the_refusal_shows_room_and_one_from_before_does_not() -> None:
    pool = Pool(2)
    before = pool.send_to(1)
    pool.now += 0.1
    refuse(pool)
    pool.router.ended(before, OK, pool.now)
    assert full_for(pool) > 0
    pool.now += 0.1
    pool.answer(1, OK)
    assert full_for(pool) < 0
    assert refuse(pool) == pytest.approx(0.25), "the next refusal begins anew"


@pytest.mark.parametrize(
    ("page_time", "load", "cleared"),
    [(100.1, 4.0, True), (100.1, 9.0, False), (99.9, 0.0, False), (100.1, math.nan, False)],
)
def test_a_newer_page_may_show_room(page_time: float, load: float, cleared: bool) -> None:
    pool = Pool(2)
    slot = pool.slot(1)
    pool.fleet.scraped_load[slot.row] = 10.0
    refuse(pool, 5.0)
    pool.fleet.scraped_load[slot.row] = load
    pool.router.page_read(slot, page_time, pool.now)
    assert (full_for(pool) < 0) is cleared


def test_where_all_are_full_nobody_is_excluded() -> None:
    pool = Pool(3)
    for number in (1, 2, 3):
        pool.answer(number, FULL, after=0.0)
    assert (pool.fleet.full_until[:3] > pool.now).all()
    assert len(pool.first_choices()) == 3


def test_a_refusal_by_an_endpoint_that_is_gone_is_nobodys() -> None:
    pool = Pool(2)
    ticket = pool.send_to(1)
    old = pool.slot(1)
    pool.fleet.remove(old)
    pool.add("10.0.0.1:80")
    pool.router.ended(ticket, FULL, pool.now)
    pool.router.page_read(old, pool.now, pool.now)
    assert full_for(pool) < 0
