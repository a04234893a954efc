"""Clusters are drawn before endpoints: what that makes of decisions."""

from __future__ import annotations

from collections import Counter

from picker.inference.question import Question
from picker.routing.clusters import ClusterDraw
from picker.routing.decision import Refusal
from picker.routing.router import Router
from scorer.fleet import CLUSTER_LABEL
from scorer.profile import built_in_profile
from tests.routing.support import OK, SEES_ALL, Pool


class Upgrade(Pool):
    """Six endpoints, of which the first four are of the old cluster and the others of the new one."""

    def __init__(self, *, fallbacks: int = 0, old: int = 70, new: int = 30) -> None:
        super().__init__(6, fallbacks=fallbacks)
        for row in range(6):
            cluster = "old" if row < 4 else "new"
            self.fleet.relabel(self.fleet.slot_at(row), {CLUSTER_LABEL: cluster})
        self.clusters = ClusterDraw(self.fleet)
        self.clusters.set_weights({"old": old, "new": new})
        self.router = Router(
            self.fleet, built_in_profile(), self.router._rng, fallbacks=fallbacks, clusters=self.clusters
        )

    def cluster(self, address: str) -> str:
        slot = self.fleet.slot_of(address)
        assert slot is not None
        return self.fleet.labels[slot.row][CLUSTER_LABEL]


def test_the_ratio_holds_whatever_the_loads_are() -> None:
    pool = Upgrade()
    pool.fleet.scraped_load[:4] = 50.0
    served = Counter(pool.cluster(pool.decide().endpoints[0]) for _ in range(100))
    assert served == {"old": 70, "new": 30}


def test_inside_the_cluster_the_least_loaded_one_is_chosen() -> None:
    pool = Upgrade(old=0, new=100)
    pool.fleet.scraped_load[4] = 50.0
    assert {pool.decide().endpoints[0] for _ in range(20)} == {"10.0.0.6:80"}


def test_fallbacks_are_of_the_same_cluster() -> None:
    pool = Upgrade(fallbacks=3)
    for _ in range(20):
        endpoints = pool.decide().endpoints
        assert len({pool.cluster(address) for address in endpoints}) == 1
        assert len(endpoints) == (4 if pool.cluster(endpoints[0]) == "old" else 2)


def test_a_decision_that_is_replaced_is_one_turn_and_stays_in_its_cluster() -> None:
    pool = Upgrade()
    served = Counter[str]()
    for _ in range(100):
        first = pool.decide()
        final = pool.decide(replaces=first.ticket)
        assert pool.cluster(final.endpoints[0]) == pool.cluster(first.endpoints[0])
        served[pool.cluster(final.endpoints[0])] += 1
    assert served == {"old": 70, "new": 30}


def test_the_simplest_choice_keeps_the_ratio_too() -> None:
    pool = Upgrade()
    served = Counter(pool.cluster(pool.decide(simplest=True).endpoints[0]) for _ in range(100))
    assert served == {"old": 70, "new": 30}


def test_explaining_is_no_turn() -> None:
    pool = Upgrade(old=50, new=50)
    explained = [pool.router.explain(Question(path="/"), pool.now).turn for _ in range(10)]
    assert len({turn.cluster for turn in explained if turn is not None}) == 1


def test_a_cluster_that_cannot_be_had_spills_or_is_refused() -> None:
    pool = Upgrade()
    pool.fleet.reachable[:4] = False
    assert {pool.cluster(pool.decide().endpoints[0]) for _ in range(20)} == {"new"}
    pool.clusters.spill = False
    answers = [pool.router.ask(Question(path="/"), SEES_ALL, pool.now) for _ in range(100)]
    assert Counter(answer.status for answer in answers if isinstance(answer, Refusal)) == {503: 70}


def test_of_requests_that_may_be_shed_those_of_the_cluster_with_room_are_served() -> None:
    pool = Upgrade(old=50, new=50)
    pool.fleet.queue[:4], pool.fleet.queue[4:] = 1e6, 0.0
    pool.fleet.kv_usage[:4], pool.fleet.kv_usage[4:] = 1.0, 0.0
    asked = [pool.router.ask(Question(path="/", priority=-1), SEES_ALL, pool.now) for _ in range(10)]
    assert sum(isinstance(answer, Refusal) for answer in asked) == 5


def test_a_request_that_ended_stays_a_turn() -> None:
    pool = Upgrade()
    served = Counter[str]()
    for _ in range(100):
        decision = pool.decide()
        served[pool.cluster(decision.endpoints[0])] += 1
        pool.router.ended(decision.ticket, OK, pool.now)
    assert served == {"old": 70, "new": 30}
