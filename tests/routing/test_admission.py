"""Shedding: which requests, and when there is no room for them."""

from __future__ import annotations

import numpy as np
import pytest

from picker.inference.question import Question
from picker.routing.admission import saturated
from picker.routing.decision import Decision, Refusal
from scorer.fleet import Fleet
from scorer.saturation import Utilization
from tests.routing.support import BROKEN, FULL, OK, SEES_ALL, Pool

NAN = float("nan")
NOW = 100.0
SHED = Refusal(429, "rejected-saturated", "system saturated, sheddable request dropped")
BATCH = Question(path="/", priority=-1)


def fleet(*endpoints: tuple[float, float], age: float = 0.0, proxy: bool = False) -> Fleet:
    """Endpoints by queue and KV usage, whose pages are ``age`` seconds old."""
    found = Fleet()
    for number, (queue, kv_usage) in enumerate(endpoints):
        row = found.add(f"10.0.0.{number}:80").row
        found.queue[row], found.kv_usage[row] = queue, kv_usage
        found.fetched_at[row], found.proxy[row] = NOW - age, proxy
    return found


def full(found: Fleet) -> bool:
    return saturated(found, np.flatnonzero(found.alive), NOW, Utilization())


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ([(5, 0.0)], True),
        ([(4, 0.0)], False),
        ([(0, 0.8)], True),
        ([(0, 0.79)], False),
        ([(4, 0.79)], False),  # the worse of the two, not their sum
        ([(5, 0.0), (0, 0.8)], True),
        ([(5, 0.0), (4, 0.0)], False),
        ([(10, 0.0), (0, 0.0)], True),  # the mean, not each
        ([(9, 0.0), (0, 0.0)], False),
        ([(5, NAN), (NAN, 0.8)], True),
        ([(10, 0.9), (NAN, NAN), (NAN, NAN)], False),
        ([(NAN, NAN)], False),
    ],
)
def test_model_servers(endpoints: list[tuple[float, float]], expected: bool) -> None:
    assert full(fleet(*endpoints)) is expected


@pytest.mark.parametrize(
    ("queues", "expected"),
    [([1, 1, 1], True), ([0, 1, 1], False), ([0, 90, 90], False), ([NAN, 9], False), ([9], True)],
)
def test_proxies_are_saturated_when_each_has_a_queue(queues: list[float], expected: bool) -> None:
    assert full(fleet(*((queue, NAN) for queue in queues), proxy=True)) is expected


def test_the_kv_cache_of_a_proxys_node_says_nothing_about_its_pool() -> None:
    assert not full(fleet((0, 1.0), proxy=True))


@pytest.mark.parametrize(("age", "expected"), [(5.0, True), (17.5, True), (18.0, False), (np.inf, False)])
def test_an_old_page_counts_less_and_a_missing_one_not_at_all(age: float, expected: bool) -> None:
    assert full(fleet((10, 0.0), age=age)) is expected


def saturated_pool(size: int = 2) -> Pool:
    pool = Pool(size)
    pool.fleet.queue[:size] = 9
    return pool


def test_what_may_be_shed_is_shed_and_nothing_counted() -> None:
    pool = saturated_pool()
    assert pool.router.ask(BATCH, SEES_ALL, pool.now) == SHED
    assert pool.router.in_flight == 0


@pytest.mark.parametrize("priority", [0, 1])
def test_other_requests_are_served(priority: int) -> None:
    pool = saturated_pool()
    assert pool.decide(Question(path="/", priority=priority))


def test_with_room_all_are_served() -> None:
    assert Pool(2).decide(BATCH)


def test_only_endpoints_that_could_get_the_request_count() -> None:
    pool = saturated_pool()
    pool.fleet.queue[0] = 0
    assert pool.decide(BATCH)
    pool.answer(1, FULL)  # the one with room refused a moment ago
    assert pool.router.ask(BATCH, SEES_ALL, pool.now) == SHED
    subset = ("10.0.0.2:80",)
    assert pool.router.ask(Question(path="/", priority=-1, subset=subset), SEES_ALL, pool.now) == SHED


def test_without_endpoints_that_is_the_reason() -> None:
    pool = Pool(0)
    answer = pool.router.ask(BATCH, SEES_ALL, pool.now)
    assert isinstance(answer, Refusal)
    assert answer.reason == "rejected-no-endpoints"


def test_a_provisional_decision_is_withdrawn_when_the_final_one_is_to_shed() -> None:
    pool = Pool(2)
    provisional = pool.decide(Question(path="/"))
    pool.fleet.queue[:2] = 9
    answer = pool.router.ask(BATCH, SEES_ALL, pool.now, replaces=provisional.ticket)
    assert answer == SHED
    assert pool.router.in_flight == 0


def test_the_simplest_policy_sheds_nothing() -> None:
    pool = saturated_pool()
    assert isinstance(pool.router.ask(BATCH, SEES_ALL, pool.now, simplest=True), Decision)


def test_a_trial_of_a_broken_endpoint_is_not_used_up_by_shedding() -> None:
    pool = saturated_pool(3)
    for _ in range(20):
        pool.answer(1, BROKEN)
        pool.answer(2, OK)
        if pool.open_breakers():
            break
    assert pool.open_breakers() == [1]
    pool.now += 1.5
    pool.fleet.fetched_at[:3] = pool.now
    assert pool.router.ask(BATCH, SEES_ALL, pool.now) == SHED
    pool.fleet.queue[:3] = 0
    assert "10.0.0.1:80" in {pool.decide().endpoints[0] for _ in range(6)}
