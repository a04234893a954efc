"""Whole decisions."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pytest

from picker.inference.question import Question
from picker.routing.decision import Refusal
from picker.routing.router import Router
from scorer.filters import not_draining
from scorer.fleet import Fleet
from scorer.profile import NamedFilter, Profile, Weighted, built_in_profile
from tests.routing.support import BROKEN, OK, SEES_ALL, SEES_NOTHING, UNSEEN, Pool

if TYPE_CHECKING:
    from picker.routing.decision import Ticket
    from scorer.contract import Request, Rows

NO_ENDPOINTS = Refusal(
    503, "rejected-no-endpoints", "failed to find endpoint candidates for serving the request"
)


def failing_scorer(_fleet: Fleet, _rows: Rows, _request: Request, _now: float) -> NoReturn:
    raise ZeroDivisionError


@pytest.mark.parametrize("simplest", [False, True])
@pytest.mark.parametrize(("size", "subset"), [(0, None), (2, ()), (2, ("10.9.9.9:80",))])
def test_without_candidates_the_request_is_refused(
    size: int, subset: tuple[str, ...] | None, simplest: bool
) -> None:
    pool = Pool(size)
    answer = pool.router.ask(Question(subset=subset), SEES_ALL, pool.now, simplest=simplest)
    assert answer == NO_ENDPOINTS
    assert pool.router.in_flight == 0


def test_a_profile_that_filters_everybody_sheds_the_request() -> None:
    pool = Pool(1)
    pool.router.profile = Profile((), filters=(NamedFilter("not-draining", not_draining),))
    pool.fleet.draining[0] = True
    answer = pool.router.ask(Question(), SEES_ALL, pool.now)
    assert answer == Refusal(429, "rejected-saturated", "no endpoints available for the given request")
    assert pool.router.in_flight == 0


@pytest.mark.parametrize("size", [3, 8, 100])
@pytest.mark.parametrize("prompt", [b"", b"x" * 2000])
def test_a_herd_spreads_evenly(size: int, prompt: bytes) -> None:
    pool = Pool(size)
    question = Question(path="/", prompt=prompt)
    counts = Counter(pool.decide(question).endpoints[0] for _ in range(1000))
    assert len(counts) == size
    assert max(counts.values()) - min(counts.values()) <= 2


def test_old_pages_make_no_herd() -> None:
    pool = Pool(8)
    pool.fleet.kv_usage[:8] = [0.1, 0.7, 0.3, 0.5, 0.2, 0.6, 0.4, 0.0]
    pool.fleet.queue[:8] = pool.fleet.scraped_load[:8] = [0, 3, 1, 2, 0, 3, 1, 0]
    pool.now += 10.0
    question = Question(path="/", prompt=b"x" * 2000)
    counts = Counter(pool.decide(question).endpoints[0] for _ in range(400))
    assert max(counts.values()) <= 1.1 * 50


def test_one_that_fails_at_once_gets_next_to_nothing_after_its_first_failures() -> None:
    pool, rng = Pool(8), Random(3)
    running: list[tuple[float, Ticket]] = []
    sent = failed = 0
    for _ in range(6000):
        pool.now += 0.01
        while running and running[0][0] <= pool.now:
            pool.router.ended(running.pop(0)[1], OK, pool.now)
        decision = pool.decide(Question(path="/", prompt=b"x" * 400))
        sent += pool.now > 101.0
        if decision.endpoints[0] == "10.0.0.1:80":
            failed += pool.now > 101.0
            pool.router.ended(decision.ticket, BROKEN, pool.now + 0.001)
        else:
            running.append((pool.now + rng.uniform(0.4, 0.6), decision.ticket))
            running.sort(key=lambda one: one[0])
    assert failed < 0.01 * sent


def test_pages_of_a_pool_with_other_clients_are_evened_out() -> None:
    pool = Pool(3)
    pool.fleet.scraped_load[:3] = [20, 0, 10]
    counts = Counter(pool.decide().endpoints[0] for _ in range(60))
    assert [counts[f"10.0.0.{number}:80"] for number in (1, 2, 3)] == pytest.approx([10, 30, 20], abs=1)


def test_fallbacks_are_the_next_best() -> None:
    pool = Pool(4, fallbacks=2)
    pool.fleet.own[:4] = [2, 9, 0, 1]
    assert pool.decide().endpoints == ("10.0.0.3:80", "10.0.0.4:80", "10.0.0.1:80")
    assert pool.fleet.own[2] == 1, "counted at the first only"
    assert len(Pool(2, fallbacks=5).decide().endpoints) == 2


def test_the_subset_binds_whatever_the_load() -> None:
    pool = Pool(3)
    pool.fleet.own[2] = 50
    assert pool.decide(Question(subset=("10.0.0.3",))).endpoints == ("10.0.0.3:80",)


def test_an_endpoint_that_does_not_serve_the_path_is_avoided() -> None:
    pool = Pool(2)
    pool.fleet.set_routes(pool.slot(1), ["/a"])
    pool.fleet.set_routes(pool.slot(2), ["/b"])
    assert pool.decide(Question(path="/b/x")).endpoints == ("10.0.0.2:80",)
    assert pool.decide(Question(path="/c")).endpoints


def test_a_replaced_decision_moves_and_does_not_count_against_its_endpoint() -> None:
    pool = Pool(8)
    for _ in range(20):
        provisional = pool.decide(visibility=SEES_NOTHING)
        final = pool.decide(Question(path="/", prompt=b"x" * 400), replaces=provisional.ticket)
        assert final.endpoints == provisional.endpoints, "it wins ties"
        pool.router.ended(provisional.ticket, BROKEN, pool.now)
        pool.router.ended(final.ticket, OK, pool.now)
    assert pool.router.in_flight == 0
    assert not pool.fleet.own.any()
    assert not pool.fleet.own_tokens.any()


def test_a_replaced_decision_leaves_a_busier_endpoint() -> None:
    pool = Pool(2)
    provisional = pool.decide()
    first = provisional.endpoints[0]
    for _ in range(3):
        pool.send_to(int(first.split(".")[3].split(":")[0]))
    assert pool.decide(replaces=provisional.ticket).endpoints != provisional.endpoints
    assert pool.router.in_flight == 4


def test_a_replaced_trial_stays_a_trial() -> None:
    pool = Pool(3)
    for number in (2, 3, 2, 3):
        pool.answer(number, OK)
    for _ in range(8):
        pool.answer(1, BROKEN)
    assert pool.open_breakers() == [1]
    pool.now += 1.0
    provisional = pool.decide()
    while provisional.endpoints[0] != "10.0.0.1:80":
        provisional = pool.decide()
    final = pool.decide(replaces=provisional.ticket)
    assert final.endpoints == provisional.endpoints
    assert pool.decide().endpoints != provisional.endpoints
    pool.router.ended(final.ticket, OK, pool.now)
    assert pool.open_breakers() == []


def test_the_refusal_of_a_replacement_withdraws_what_it_replaces() -> None:
    pool = Pool(1)
    provisional = pool.decide()
    answer = pool.router.ask(Question(subset=()), SEES_ALL, pool.now, replaces=provisional.ticket)
    assert answer == NO_ENDPOINTS
    pool.router.ended(provisional.ticket, OK, pool.now)
    assert pool.router.in_flight == pool.fleet.own[0] == 0


def test_a_profile_that_raises_leaves_nothing_behind_and_the_simplest_still_answers() -> None:
    pool = Pool(3)
    for number in (2, 3, 2, 3):
        pool.answer(number, OK)
    for _ in range(8):
        pool.answer(1, BROKEN)
    pool.now += 1.0
    pool.router.profile = Profile((Weighted("failing", 1.0, failing_scorer),))
    provisional = pool.decide(simplest=True)
    with pytest.raises(ZeroDivisionError):
        pool.router.ask(Question(), SEES_ALL, pool.now, replaces=provisional.ticket)
    assert pool.open_breakers() == [1], "the offered trial was not taken"
    assert pool.router.in_flight == 0
    assert pool.decide(replaces=provisional.ticket, simplest=True).endpoints
    assert pool.router.in_flight == 1


def test_the_simplest_policy_draws_among_all_of_the_subset() -> None:
    pool = Pool(4, fallbacks=1)
    pool.fleet.own[0] = 100
    subset = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    decisions = [pool.decide(Question(subset=subset), simplest=True).endpoints for _ in range(100)]
    assert {first for first, _ in decisions} == {f"{ip}:80" for ip in subset}
    assert all(first != second for first, second in decisions)


def test_until_pages_are_in_the_choice_is_random_and_later_it_is_the_least() -> None:
    fleet = Fleet()
    for number in (1, 2):
        fleet.add(f"10.0.0.{number}:80")
    router = Router(fleet, built_in_profile(), Random(1), start_grace=2.0)

    def chosen(now: float) -> set[int]:
        rows = set()
        for _ in range(40):
            fleet.own[:2] = [3, 0]
            router.ask(Question(), SEES_ALL, now)
            rows.add(int(np.argmax(fleet.own[:2] - [3, 0])))
        return rows

    assert chosen(100.0) == {0, 1}
    fleet.fetched_at[:2] = 100.0
    assert chosen(100.5) == {1}, "pages are in"
    fleet.fetched_at[:2] = -np.inf
    assert chosen(101.9) == {0, 1}
    assert chosen(102.1) == {1}, "there will be none"


def test_out_of_sight_it_counts_where_it_was_served() -> None:
    pool = Pool(2, fallbacks=1)
    pool.fleet.own[1] = 1
    ticket = pool.decide().ticket
    pool.router.ended(ticket, UNSEEN.__class__(UNSEEN.cause, served="10.0.0.2:80"), pool.now)
    assert pool.fleet.own[:2].tolist() == [0, 1]
    assert pool.fleet.untracked[:2].tolist() == [0, 1]


def test_a_foreign_ticket_is_refused() -> None:
    with pytest.raises(TypeError, match="not a ticket of this router"):
        Pool(1).router.ended(object(), OK, 0.0)


def test_what_remembers_is_told_of_requests_that_are_sent_and_of_no_refusals() -> None:
    pool = Pool(2)
    told: list[tuple[int, str]] = []
    pool.router.profile = Profile(
        (), observers=(lambda _fleet, row, request, _now: told.append((row, request.path)),)
    )
    pool.decide(Question(path="/a", subset=("10.0.0.2:80",)))
    pool.router.ask(Question(path="/b", subset=()), SEES_ALL, pool.now)
    assert told == [(1, "/a")]


def test_a_profile_marks_the_answers_of_what_it_sends() -> None:
    pool = Pool(2)
    pool.router.profile = Profile(
        (), marks=(lambda fleet, row, _request, _now: ("x-seat", fleet.addresses[row]), lambda *_: None)
    )
    decision = pool.decide(Question(subset=("10.0.0.2:80",)))
    assert decision.response_headers == (("x-seat", "10.0.0.2:80"),)
