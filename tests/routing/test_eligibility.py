"""The ladder: each soft condition holds as long as somebody meets it."""

from __future__ import annotations

import numpy as np

from picker.inference.question import Question
from picker.routing.eligibility import eligible
from scorer.fleet import Fleet

NOW = 100.0


def fleet_with(*faults: str) -> Fleet:
    """One endpoint for each word of faults: f full, d draining, b breaker open, u unreachable, p no path."""
    fleet = Fleet()
    for number, letters in enumerate(faults):
        slot = fleet.add(f"10.0.0.{number}:80")
        fleet.full_until[slot.row] = NOW + 1 if "f" in letters else -np.inf
        fleet.draining[slot.row] = "d" in letters
        fleet.breaker_open[slot.row] = "b" in letters
        fleet.reachable[slot.row] = "u" not in letters
        fleet.set_routes(slot, ["/other"] if "p" in letters else ["/"])
    return fleet


def pass_ladder(*faults: str) -> list[str]:
    fleet = fleet_with(*faults)
    rows = eligible(fleet, fleet.alive.nonzero()[0], Question(path="/app"), NOW, [])
    return [faults[row] for row in rows]


def test_those_without_fault_are_taken() -> None:
    assert pass_ladder("", "f", "d", "", "b", "u", "p") == ["", ""]


def test_the_lightest_fault_is_forgiven_first() -> None:
    assert pass_ladder("f", "d", "b", "u", "p") == ["f"]
    assert pass_ladder("d", "b", "u", "p") == ["d"]
    assert pass_ladder("b", "u", "p") == ["b"]
    assert pass_ladder("u", "p") == ["u"]


def test_what_counts_is_the_gravest_fault_then_the_next() -> None:
    assert pass_ladder("fdb", "u") == ["fdb"]
    assert pass_ladder("fd", "d", "db") == ["d"]


def test_a_fault_of_all_excludes_nobody() -> None:
    for fault in ("f", "d", "b", "u", "p", "fdbup"):
        assert pass_ladder(fault, fault, fault) == [fault] * 3


def test_a_fault_of_all_leaves_the_others_in_force() -> None:
    assert pass_ladder("u", "ud", "ub", "u") == ["u", "u"]


def test_nobody_stays_nobody() -> None:
    assert pass_ladder() == []
