"""An endpoint is out when it does clearly worse than the others, and only then."""

from __future__ import annotations

from random import Random

import pytest

from picker.inference.question import Question
from picker.routing.breaker import ANSWERING, LONGEST_HOLD, TRIAL_TIMEOUT, UNREACHABLE_WAIT, verdict
from picker.routing.decision import Cause, Outcome, Ticket
from tests.routing.support import BROKEN, FULL, OK, SEES_ALL, SEES_NOTHING, UNSEEN, Pool


def serving_pool(size: int = 4) -> Pool:
    """A pool in which everybody has answered well lately, and all but the first have a request to do."""
    pool = Pool(size)
    for _ in range(10):
        for number in range(1, size + 1):
            pool.answer(number, OK)
    for number in range(2, size + 1):
        pool.send_to(number)
    return pool


def break_one(pool: Pool, number: int = 1, *, within: int = 5) -> None:
    """Failures of one endpoint among answers of the others until it is out."""
    for _ in range(within):
        pool.answer(number, BROKEN)
        if number in pool.open_breakers():
            return
        for other in range(1, len(pool.fleet) + 1):
            if other != number and other not in pool.open_breakers():
                pool.answer(other, OK)
    raise AssertionError(f"endpoint {number} is not out after {within} failures")


def trial(pool: Pool) -> Ticket | None:
    """The next ordinary request's ticket if it goes to endpoint 1, which is out."""
    decision = pool.decide()
    if decision.endpoints[0] == "10.0.0.1:80":
        return decision.ticket
    pool.router.ended(decision.ticket, OK, pool.now)
    return None


@pytest.mark.parametrize(
    ("outcome", "good"),
    [
        (Outcome(Cause.COMPLETE, 200), True),
        (Outcome(Cause.CLOSED, 204), True),
        (Outcome(Cause.COMPLETE, 404), True),
        (Outcome(Cause.COMPLETE, 500), False),
        (Outcome(Cause.CLOSED, 503), False),
        (Outcome(Cause.ABORTED, 502), False),
        (Outcome(Cause.COMPLETE, 503, back_pressure=True), None),
        (Outcome(Cause.COMPLETE, 408), None),
        (Outcome(Cause.COMPLETE, 499), None),
        (Outcome(Cause.ABORTED, 200), None),
        (Outcome(Cause.ABORTED), None),
        (Outcome(Cause.CLOSED), None),
        (Outcome(Cause.UNSEEN), None),
        (Outcome(Cause.UNSEEN, 200), True),
        (Outcome(Cause.UNSEEN, 500), False),
    ],
)
def test_what_counts_as_failure(outcome: Outcome, good: bool | None) -> None:
    assert verdict(outcome) is good


@pytest.mark.parametrize("size", [2, 3, 8])
def test_one_that_alone_fails_is_out_after_a_few(size: int) -> None:
    pool = serving_pool(size)
    break_one(pool)
    assert pool.open_breakers() == [1]
    assert "10.0.0.1:80" not in pool.first_choices()


def test_one_that_swallows_everything_is_out_though_the_others_say_nothing() -> None:
    pool = Pool(3)
    for number in (2, 3):
        pool.send_to(number)  # long ones, no end in sight
    for _ in range(20):
        pool.answer(1, BROKEN)
    assert pool.open_breakers() == [1]


def test_two_that_swallow_everything_are_both_out() -> None:
    pool = serving_pool(8)
    for _ in range(14):
        pool.answer(1, BROKEN)
        pool.answer(2, BROKEN)
    assert pool.open_breakers() == [1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("warm", [True, False])
def test_when_all_fail_nobody_is_out(size: int, warm: bool) -> None:
    pool = serving_pool(size) if warm else Pool(size)
    for _ in range(100):
        for number in range(1, size + 1):
            pool.answer(number, BROKEN)
            assert pool.open_breakers() == []


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_a_request_that_fails_wherever_it_goes_puts_nobody_out(share: float) -> None:
    pool, rng = Pool(4), Random(7)
    for _ in range(3000):
        decision = pool.decide()
        pool.now += 0.01
        pool.router.ended(decision.ticket, BROKEN if rng.random() < share else OK, pool.now)
        assert pool.open_breakers() == []


def test_a_pool_under_back_pressure_has_nobody_out() -> None:
    pool = serving_pool()
    for _ in range(30):
        pool.answer(1, FULL)
    assert pool.open_breakers() == []


def test_a_good_answer_ends_a_row_of_failures() -> None:
    pool = serving_pool()
    for _ in range(20):
        pool.answer(1, BROKEN)
        pool.answer(1, BROKEN)
        pool.answer(1, OK)
    assert pool.open_breakers() == []


@pytest.mark.parametrize(("size", "most"), [(1, 0), (2, 1), (3, 1), (5, 2), (8, 4)])
def test_never_more_than_half_are_out(size: int, most: int) -> None:
    pool = serving_pool(size)
    for _ in range(60):
        for number in range(1, size):
            pool.answer(number, BROKEN, after=0.0)
        for _ in range(10):
            pool.answer(size, OK, after=0.0)
    assert len(pool.open_breakers()) == most


def test_when_the_pool_shrinks_the_longest_out_come_back() -> None:
    pool = serving_pool(4)
    break_one(pool, 1)
    break_one(pool, 2, within=12)
    assert pool.open_breakers() == [1, 2]
    pool.fleet.remove(pool.slot(4))
    pool.router.tick(pool.now)
    assert pool.open_breakers() == [2]


def test_one_trial_at_a_time_and_its_success_brings_the_endpoint_back() -> None:
    pool = serving_pool()
    break_one(pool)
    assert trial(pool) is None, "not before a second is over"
    pool.now += 1.0
    first = trial(pool)
    assert first is not None
    assert pool.open_breakers() == [1]
    assert trial(pool) is None, "one at a time"
    pool.router.ended(first, OK, pool.now)
    assert pool.open_breakers() == []
    assert "10.0.0.1:80" in pool.first_choices()


def test_each_failed_trial_doubles_the_time_out() -> None:
    pool = serving_pool()
    break_one(pool)
    for hold in (1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_HOLD, LONGEST_HOLD):
        pool.now += hold - 0.01
        assert trial(pool) is None
        pool.now += 0.01
        ticket = trial(pool)
        assert ticket is not None
        pool.router.ended(ticket, BROKEN, pool.now)


def test_a_failed_trial_is_forgiven_when_by_then_the_others_fail_too() -> None:
    pool = serving_pool()
    break_one(pool)
    for _ in range(20):
        for number in (2, 3, 4):
            pool.answer(number, BROKEN)
    assert pool.open_breakers() == [1]
    pool.now += 1.0
    ticket = trial(pool)
    assert ticket is not None
    pool.router.ended(ticket, BROKEN, pool.now)
    assert pool.open_breakers() == []


def test_failing_again_soon_after_coming_back_doubles_too() -> None:
    pool = serving_pool()
    break_one(pool)
    pool.now += 1.0
    ticket = trial(pool)
    assert ticket is not None
    pool.router.ended(ticket, OK, pool.now)
    break_one(pool)
    pool.now += 1.5
    assert trial(pool) is None
    pool.now += 0.5
    assert trial(pool) is not None


@pytest.mark.parametrize("outcome", [Outcome(Cause.ABORTED), UNSEEN, FULL])
def test_a_trial_that_says_nothing_makes_room_for_the_next(outcome: Outcome) -> None:
    pool = serving_pool()
    break_one(pool)
    pool.now += 1.0
    ticket = trial(pool)
    assert ticket is not None
    pool.router.ended(ticket, outcome, pool.now)
    assert pool.open_breakers() == [1]
    pool.now += 1.0
    assert trial(pool) is not None


def test_a_trial_that_streams_for_a_second_is_a_success() -> None:
    pool = serving_pool()
    break_one(pool)
    pool.now += 1.0
    ticket = trial(pool)
    assert ticket is not None
    pool.router.first_token(ticket, pool.now)
    pool.now += ANSWERING
    pool.decide()
    assert pool.open_breakers() == []


def test_a_trial_that_hangs_is_given_up() -> None:
    pool = serving_pool()
    break_one(pool)
    pool.now += 1.0
    hanging = trial(pool)
    assert hanging is not None
    for _ in range(3):
        pool.send_to(2), pool.send_to(3), pool.send_to(4)
    pool.now += TRIAL_TIMEOUT - 0.1
    assert trial(pool) is None
    pool.now += 0.1
    assert trial(pool) is not None


def test_a_trial_waits_for_the_probes_but_not_for_ever() -> None:
    pool = serving_pool()
    break_one(pool)
    pool.fleet.reachable[:] = False  # where others are reachable, the ladder keeps it out by itself
    pool.now += UNREACHABLE_WAIT
    assert trial(pool) is None
    pool.fleet.reachable[:] = True
    assert trial(pool) is not None

    pool = serving_pool()
    break_one(pool)
    pool.fleet.reachable[:] = False
    pool.now += 1.0 + UNREACHABLE_WAIT
    assert trial(pool) is not None


def test_a_request_whose_status_will_not_be_seen_is_no_trial() -> None:
    pool = serving_pool()
    break_one(pool)
    pool.now += 1.0
    assert "10.0.0.1:80" not in pool.first_choices()
    assert pool.decide(visibility=SEES_ALL).endpoints[0] == "10.0.0.1:80"


def test_where_no_status_is_seen_any_more_it_comes_back_in_the_end() -> None:
    pool = serving_pool()
    break_one(pool)
    pool.now += 1.0 + UNREACHABLE_WAIT
    assert "10.0.0.1:80" in pool.first_choices()


def test_answers_to_requests_from_before_do_not_bring_it_back() -> None:
    pool = serving_pool()
    early = pool.send_to(1)
    break_one(pool)
    pool.router.ended(early, OK, pool.now)
    assert pool.open_breakers() == [1]
    pool.now += 0.01
    late = pool.send_to(1)  # a subset of one: there is nobody else
    pool.router.ended(late, OK, pool.now)
    assert pool.open_breakers() == []


def test_if_all_that_are_left_are_out_they_are_used() -> None:
    pool = serving_pool(2)
    break_one(pool)
    question = Question(path="/", subset=("10.0.0.1:80",))
    assert pool.decide(question, SEES_NOTHING).endpoints == ("10.0.0.1:80",)


def test_skipped_endpoints_have_a_failure() -> None:
    pool = Pool(3, fallbacks=1)
    for number in (1, 2, 3):
        for _ in range(10):
            pool.answer(number, OK)
    pool.fleet.own[:3] = [0, 1, 5]  # so the order is 1, 2
    for _ in range(5):
        if pool.open_breakers():
            break
        decision = pool.decide()
        assert decision.endpoints == ("10.0.0.1:80", "10.0.0.2:80")
        pool.router.ended(decision.ticket, Outcome(Cause.COMPLETE, 200, served="10.0.0.2:80"), pool.now)
    assert pool.open_breakers() == [1]
    assert pool.fleet.own[:3].tolist() == [0, 1, 5]


def test_a_served_address_that_is_not_of_the_pool_says_nothing() -> None:
    pool = serving_pool()
    for _ in range(20):
        pool.answer(1, Outcome(Cause.COMPLETE, 200, served="10.0.0.1"))
    assert pool.open_breakers() == []


def test_the_breaker_goes_with_its_endpoint() -> None:
    pool = serving_pool()
    break_one(pool)
    pool.now += 1.0
    ticket = trial(pool)
    assert ticket is not None
    old = pool.slot(1)
    pool.fleet.remove(old)
    pool.add("10.0.0.1:80")
    pool.router.tick(pool.now)
    assert pool.open_breakers() == []
    pool.router.first_token(ticket, pool.now)
    pool.router.ended(ticket, BROKEN, pool.now)
    assert pool.open_breakers() == []
    assert not pool.fleet.untracked.any()
    assert not (pool.fleet.full_until > pool.now).any()
