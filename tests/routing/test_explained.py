"""Each decision can be explained later, and one that is not made can be explained without being made."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random

import numpy as np

from picker.inference.question import Question
from picker.routing.decision import Decision, Refusal
from picker.routing.explained import MOST_DECISIONS, Asked, Explained, Recent
from picker.routing.router import Router
from scorer.filters import not_draining
from scorer.plugins.filters import PrefixAffinityFilter
from scorer.profile import NamedFilter, Profile, built_in_profile
from tests.routing.support import FULL, SEES_ALL, Pool
from tests.routing.test_prefixes import Prompts, text


def test_a_decision_says_what_was_asked_who_was_dropped_and_what_each_scorer_said() -> None:
    pool = Pool(4)
    pool.fleet.draining[0] = True
    pool.answer(2, FULL)
    pool.fleet.own[2:4] = [0, 1]
    decision = pool.decide(
        Question(method="POST", path="/v1/x", model="m", headers={"x-request-id": "id-1"}, prompt=b"x" * 40)
    )
    explained = list(pool.router.recent)[-1]
    assert explained.at == pool.now
    assert explained.asked == Asked("POST", "/v1/x", "m", "id-1", 10, 0)
    assert explained.endpoints == decision.endpoints == ("10.0.0.3:80",)
    assert explained.dropped() == {"not-draining": ["10.0.0.1:80"], "not-full": ["10.0.0.2:80"]}
    assert list(explained.scores()) == ["10.0.0.3:80", "10.0.0.4:80"]
    assert explained.scores()["10.0.0.4:80"].keys() == {"total", "least-work"}
    assert explained.weights()["least-work"] == 1.0
    assert explained.draws == ()


def test_the_draw_among_equals_is_told() -> None:
    pool = Pool(4)
    pool.decide()
    explained = list(pool.router.recent)[-1]
    (draw,) = explained.draws
    assert explained.endpoints == (f"10.0.0.{1 + int(draw * 4)}:80",)


def test_refusals_and_the_profiles_own_filters_are_told() -> None:
    pool = Pool(2)
    pool.router.profile = Profile((), filters=(NamedFilter("mine", not_draining),))
    pool.fleet.draining[:2] = True
    pool.router.ask(Question(), SEES_ALL, pool.now)
    pool.router.ask(Question(subset=()), SEES_ALL, pool.now)
    filtered, nobody = pool.router.recent
    assert isinstance(filtered.refusal, Refusal)
    assert filtered.dropped() == {"mine": ["10.0.0.1:80", "10.0.0.2:80"]}
    assert nobody.refusal is not None
    assert nobody.refusal.status == 503
    assert nobody.scores() == {}
    assert nobody.dropped() == {}
    assert nobody.weights() == {}


def test_an_explanation_outlives_its_endpoints() -> None:
    pool = Pool(2)
    pool.fleet.draining[0] = True
    pool.decide()
    pool.fleet.remove(pool.slot(1))
    pool.add("10.9.9.9:80")
    (explained,) = pool.router.recent
    assert explained.dropped() == {"not-draining": ["10.0.0.1:80"]}


def test_what_clients_write_is_cut_off() -> None:
    pool = Pool(1)
    pool.decide(Question(path="/" + "p" * 9999, model="m" * 9999, headers={"x-request-id": "r" * 9999}))
    (explained,) = pool.router.recent
    asked = explained.asked
    assert len(asked.path) == len(asked.model) == len(asked.request_id) == 256


def state(pool: Pool) -> dict[str, object]:
    attributes = {name: getattr(pool.fleet, name) for name in dir(pool.fleet) if not name.startswith("__")}
    columns = {
        name: value.copy() if isinstance(value, np.ndarray) else copy.copy(value)
        for name, value in attributes.items()
        if not callable(value)
    }
    return columns | {"in flight": pool.router.in_flight, "recent": len(pool.router.recent)}


def shown(explained: Explained) -> tuple[object, ...]:
    return (explained.endpoints, explained.scores(), explained.draws, explained.matched_tokens)


def test_to_explain_changes_nothing() -> None:
    pool = Prompts(6, replicas=2)
    pool.warm(2, text("a"))
    pool.fleet.draining[4] = True
    before = state(pool)
    pairs = pool.index.pairs
    question = Question(path="/", prompt=text("a") + text("b"))
    first, second = pool.router.explain(question, pool.now), pool.router.explain(question, pool.now)
    assert shown(first) == shown(second)
    assert first.matched_tokens == 20 * 64
    np.testing.assert_equal(state(pool), before)
    assert pool.index.pairs == pairs
    answer = pool.router.ask(question, SEES_ALL, pool.now)
    assert isinstance(answer, Decision)
    assert answer.endpoints == first.endpoints, "that is what it would have been"
    assert shown(list(pool.router.recent)[-1]) == shown(first)


def test_to_explain_a_draw_uses_none_up() -> None:
    one, other = Pool(8), Pool(8)
    for _ in range(5):
        one.router.explain(Question(path="/"), one.now)
    assert [one.decide().endpoints for _ in range(8)] == [other.decide().endpoints for _ in range(8)]


def test_what_a_filter_draws_to_explain_is_drawn_again() -> None:
    rng = Random(3)
    curious = PrefixAffinityFilter(0.5, 0.5, 0.0, 1.0, rng)

    def chosen(*, explaining: bool) -> list[tuple[str, ...]]:
        rng.seed(3)
        pool = Pool(8)
        profile = replace(built_in_profile(), filters=(NamedFilter("curious", curious.keep),))
        router = Router(pool.fleet, profile, rng)
        question = Question(path="/", prompt=text("a"))
        endpoints = []
        for _ in range(20):
            pool.fleet.matched_tokens[0] = question.prompt_tokens
            if explaining:
                router.explain(question, pool.now)
            answer = router.ask(question, SEES_ALL, pool.now)
            assert isinstance(answer, Decision)
            endpoints.append(answer.endpoints)
        return endpoints

    assert chosen(explaining=True) == chosen(explaining=False)


def test_what_is_kept_is_bounded_by_number_and_by_bytes() -> None:
    explained = Explained(0.0, Asked("", "", "", "", 0, 0))
    recent = Recent()
    for _ in range(MOST_DECISIONS + 10):
        recent.add(explained)
    assert len(recent) == MOST_DECISIONS
    assert recent.nbytes == MOST_DECISIONS * explained.nbytes
    small = Recent(most_bytes=10 * explained.nbytes)
    for _ in range(20):
        small.add(explained)
    assert len(small) == 10


def test_its_bytes_count_arrays() -> None:
    pool = Pool(100)
    pool.decide()
    (explained,) = pool.router.recent
    assert explained.choice is not None
    held = explained.choice.totals.nbytes + sum(
        part.nbytes for part in explained.choice.parts if part is not None
    )
    assert explained.nbytes > held
