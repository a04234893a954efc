"""Masks over candidates, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scorer import filters
from tests.scorer.support import Asked, all_rows, fleet_of


@pytest.mark.parametrize(
    ("prefixes", "path", "serves"),
    [
        (["/"], "/anything/below", True),
        (["/app"], "/app", True),
        (["/app"], "/app/", True),
        (["/app"], "/app/v1/chat", True),
        (["/app"], "/apple", False),
        (["/app"], "/", False),
        (["/app/"], "/app", False),
        (["/app/"], "/app/x", True),
        (["/a", "/b/c"], "/b/c/d", True),
        (["/a", "/b/c"], "/b", False),
        ([], "/", False),
        (["/app"], "", True),
    ],
)
def test_a_prefix_serves_itself_and_what_is_below(prefixes: list[str], path: str, serves: bool) -> None:
    fleet = fleet_of(1)
    fleet.set_routes(fleet.slot_at(0), prefixes)
    assert filters.serves_path(fleet, all_rows(fleet), Asked(path), 0.0).tolist() == [serves]


def test_unknown_routes_serve_every_path() -> None:
    fleet = fleet_of(3)
    rows = all_rows(fleet)
    assert filters.serves_path(fleet, rows, Asked("/x"), 0.0).all(), "nobody told"
    fleet.set_routes(fleet.slot_at(0), ["/x"])
    fleet.set_routes(fleet.slot_at(1), ["/y"])
    assert filters.serves_path(fleet, rows, Asked("/x"), 0.0).tolist() == [True, False, True]


def test_each_state_has_its_mask_in_the_order_of_the_candidates() -> None:
    fleet = fleet_of(5)
    fleet.draining[0] = True
    fleet.reachable[1] = False
    fleet.breaker_open[2] = True
    fleet.full_until[3] = 10.0
    rows = np.array([4, 3, 2, 1, 0])
    request = Asked()
    assert filters.not_draining(fleet, rows, request, 9.0).tolist() == [True, True, True, True, False]
    assert filters.reachable(fleet, rows, request, 9.0).tolist() == [True, True, True, False, True]
    assert filters.breaker_closed(fleet, rows, request, 9.0).tolist() == [True, True, False, True, True]
    assert filters.not_full(fleet, rows, request, 9.0).tolist() == [True, False, True, True, True]
    assert filters.not_full(fleet, rows, request, 10.0).all(), "the refusal is over at its time"
