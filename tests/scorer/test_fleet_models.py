"""Who has which adapter or multiplexed model: a question about a whole fleet, without a loop over it."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer import fleet as fleets
from scorer.fleet import MODEL_IN_USE, MODEL_WAITING, Fleet
from tests.scorer.support import fleet_of


def set_models(fleet: Fleet, row: int, models: set[str], waiting: set[str], most: float = 4) -> None:
    fleet.set_models(fleet.slot_at(row), frozenset(models), frozenset(waiting), most)


def test_holders_tell_for_each_row_what_a_model_is_there() -> None:
    fleet = fleet_of(3)
    set_models(fleet, 0, {"a", "b"}, {"c"})
    set_models(fleet, 1, {"c"}, {"a"})
    assert fleet.holders("a")[:3].tolist() == [MODEL_IN_USE, MODEL_WAITING, 0]
    assert fleet.holders("nobody's")[:3].tolist() == [0, 0, 0]
    assert fleet.models_named[:3].tolist() == [3, 2, 0]
    assert fleet.max_models[0] == 4
    assert math.isnan(fleet.max_models[2])


def test_an_endpoint_that_leaves_holds_nothing_and_its_next_tenant_neither() -> None:
    fleet = fleet_of(1)
    slot = fleet.slot_at(0)
    set_models(fleet, 0, {"a"}, set())
    fleet.remove(slot)
    fleet.set_models(slot, frozenset({"late"}))
    fleet.add("10.0.0.9:80")
    assert not fleet.holders("a").any()
    assert not fleet.holders("late").any()


def test_the_table_of_ids_is_bounded() -> None:
    fleet = fleet_of(1)
    set_models(fleet, 0, {str(number) for number in range(fleets.MOST_MODELS + 10)}, set())
    assert len(fleet._holders) == fleets.MOST_MODELS
    set_models(fleet, 0, {"one"}, set())
    assert len(fleet._holders) == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40), st.frozensets(st.sampled_from("abcd")), st.frozensets(st.sampled_from("abcd"))
        ),
        max_size=30,
    )
)
def test_holders_are_what_was_last_set_however_the_fleet_grew(
    steps: list[tuple[int, frozenset[str], frozenset[str]]],
) -> None:
    fleet = Fleet()
    last: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
    for row, models, waiting in steps:
        while row >= len(fleet.addresses):
            fleet.add(f"10.0.0.1:{len(fleet.addresses) + 1}")
        fleet.set_models(fleet.slot_at(row), models, waiting)
        last[row] = (models, waiting)
    for name in "abcd":
        expected = np.zeros(fleet.capacity, dtype=np.int8)
        for row, (models, waiting) in last.items():
            expected[row] = MODEL_IN_USE if name in models else MODEL_WAITING if name in waiting else 0
        assert fleet.holders(name).tolist() == expected.tolist()
