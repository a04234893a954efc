"""A profile drops, adds up and chooses, and can say why."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from scorer.filters import not_draining
from scorer.profile import NamedFilter, Profile, Weighted, built_in_profile
from scorer.scorers import least_load
from tests.scorer.support import Asked, all_rows, fleet_of

if TYPE_CHECKING:
    from scorer.contract import Request, Rows, Scores
    from scorer.fleet import Fleet

NOW = 1000.0


def by_row(_fleet: Fleet, rows: Rows, _request: Request, _now: float) -> Scores:
    return rows / 10.0


def test_totals_are_weighted_sums_and_explain_themselves() -> None:
    fleet = fleet_of(3)
    fleet.own[:3] = [1, 0, 3]
    profile = Profile((Weighted("least-load", 2.0, least_load), Weighted("by-row", 1.0, by_row)))
    choice = profile.run(fleet, all_rows(fleet), Asked(), NOW, Random(1), count=2)
    assert choice.rows == (1, 0)
    assert choice.explain() == {
        "10.0.0.2:8000": {"total": 2.1, "least-load": 1.0, "by-row": 0.1},
        "10.0.0.1:8000": {"total": 1.0, "least-load": 0.5, "by-row": 0.0},
        "10.0.0.3:8000": {"total": 0.7, "least-load": 0.25, "by-row": 0.2},
    }
    assert list(choice.explain()) == ["10.0.0.2:8000", "10.0.0.1:8000", "10.0.0.3:8000"]


def test_an_explanation_outlives_its_endpoints() -> None:
    fleet = fleet_of(1)
    choice = built_in_profile().run(fleet, all_rows(fleet), Asked(), NOW, Random(1))
    fleet.remove(fleet.slot_at(0))
    fleet.add("10.9.9.9:1")
    assert list(choice.explain()) == ["10.0.0.1:8000"]


def test_filters_drop_and_may_leave_nobody() -> None:
    fleet = fleet_of(2)
    profile = Profile(
        (Weighted("least-load", 1.0, least_load),), filters=(NamedFilter("not-draining", not_draining),)
    )
    fleet.own[0] = 9
    fleet.draining[1] = True
    choice = profile.run(fleet, all_rows(fleet), Asked(), NOW, Random(1))
    assert choice.rows == (0,)
    assert [(name, rows.tolist()) for name, rows in choice.dropped] == [("not-draining", [1])]
    fleet.draining[0] = True
    nobody = profile.run(fleet, all_rows(fleet), Asked(), NOW, Random(1))
    assert nobody.rows == ()
    assert nobody.explain() == {}


def test_without_scorers_all_are_equal() -> None:
    fleet = fleet_of(3)
    chosen = {Profile(()).run(fleet, all_rows(fleet), Asked(), NOW, Random(s)).rows[0] for s in range(50)}
    assert chosen == {0, 1, 2}


def test_a_preferred_row_that_is_no_candidate_is_not_taken() -> None:
    fleet = fleet_of(3)
    choice = built_in_profile().run(fleet, np.array([0, 1]), Asked(), NOW, Random(1), prefer=2)
    assert choice.rows[0] in (0, 1)


def test_an_unsure_profile_also_takes_the_second_best() -> None:
    fleet = fleet_of(2)
    fleet.own[0] = 1
    profile = built_in_profile()
    rows = all_rows(fleet)
    sure = {profile.run(fleet, rows, Asked(), NOW, Random(s)).rows[0] for s in range(50)}
    unsure = {profile.run(fleet, rows, Asked(), NOW, Random(s), unsure=True).rows[0] for s in range(50)}
    assert sure == {1}
    assert unsure == {0, 1}


def says_nothing(_fleet: Fleet, _rows: Rows, _request: Request, _now: float) -> None:
    return None


def test_a_scorer_that_says_nothing_counts_for_nothing() -> None:
    fleet = fleet_of(2)
    profile = Profile((Weighted("silent", 9.0, says_nothing), Weighted("by-row", 2.0, by_row)))
    choice = profile.run(fleet, all_rows(fleet), Asked(), NOW, Random(1))
    assert choice.explain() == {
        "10.0.0.2:8000": {"total": 0.2, "by-row": 0.1},
        "10.0.0.1:8000": {"total": 0.0, "by-row": 0.0},
    }
    alone = Profile((Weighted("silent", 9.0, says_nothing),))
    assert {alone.run(fleet, all_rows(fleet), Asked(), NOW, Random(s)).rows[0] for s in range(50)} == {0, 1}


def built_in(fleet: Fleet, request: Asked) -> set[int]:
    """Rows that the built-in profile takes, over many draws."""
    profile = built_in_profile()
    return {profile.run(fleet, all_rows(fleet), request, NOW, Random(seed)).rows[0] for seed in range(40)}


def test_built_in_is_least_request_where_nothing_else_is_known() -> None:
    fleet = fleet_of(3)
    fleet.own[:3] = [2, 1, 1]
    assert built_in(fleet, Asked()) == {1, 2}
    assert built_in(fleet, Asked(prompt_tokens=500)) == {1, 2}


def test_built_in_takes_the_cached_prefix_until_its_endpoint_has_clearly_more_to_do() -> None:
    fleet = fleet_of(3)
    request = Asked(prompt_tokens=4000)
    fleet.matched_tokens[0] = 3000
    assert built_in(fleet, request) == {0}
    fleet.own_tokens[0] = 5900
    assert built_in(fleet, request) == {0}
    fleet.own_tokens[0] = 6100
    assert built_in(fleet, request) == {1, 2}


def test_built_in_keeps_a_session_among_equals_only() -> None:
    fleet = fleet_of(4)
    home = built_in(fleet, Asked(session_id="s"))
    assert len(home) == 1
    fleet.own[list(home)] = 1
    assert home.isdisjoint(built_in(fleet, Asked(session_id="s")))


def test_built_in_keeps_a_multiplexed_model_until_its_endpoint_costs_twice_as_much() -> None:
    fleet = fleet_of(3, fetched_at=NOW)
    fleet.proxy[:3] = True
    fleet.set_models(fleet.slot_at(1), frozenset(["m"]))
    fleet.own[:3] = [4, 8, 4]
    assert built_in(fleet, Asked(multiplexed_model_id="m")) == {1}
    fleet.own[:3] = [4, 11, 4]
    assert built_in(fleet, Asked(multiplexed_model_id="m")) == {0, 2}
