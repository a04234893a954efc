"""The gateway's subset, in every spelling seen."""

from __future__ import annotations

import pytest

from picker.routing.candidates import Candidates
from scorer.fleet import Fleet

ADDRESSES = ("10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80", "[fd00::1]:80", "[fd00::1]:81")


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    for address in ADDRESSES:
        fleet.add(address)
    return fleet


@pytest.mark.parametrize(
    ("subset", "allowed"),
    [
        (None, [0, 1, 2, 3, 4]),
        ((), []),
        (("10.0.0.1:81",), [1]),
        (("10.0.0.1",), [0, 1]),
        ((" 10.0.0.2:80 ",), [2]),
        (("10.0.0.2:81",), []),
        (("[fd00::1]:81",), [4]),
        (("[fd00::1]",), [3, 4]),
        (("fd00::1",), [3, 4]),
        (("[FD00:0:0:0:0:0:0:1]:80",), [3]),
        (("10.0.0.1:80", "10.0.0.1", "10.9.9.9:80", "10.0.0.2"), [0, 1, 2]),
        (("", ":", "]:", "[", "10.0.0.1:", "a:b:c", "no.such.host:80"), [0, 1]),
    ],
)
def test_a_port_is_exact_and_none_means_all(
    fleet: Fleet, subset: tuple[str, ...] | None, allowed: list[int]
) -> None:
    assert Candidates(fleet).rows(subset).tolist() == allowed


def test_a_change_of_the_pool_is_seen_by_a_subset_asked_before(fleet: Fleet) -> None:
    candidates = Candidates(fleet)
    subset = ("10.0.0.2", "10.0.0.3:80")
    assert candidates.rows(subset).tolist() == [2]
    gone = fleet.slot_of("10.0.0.2:80")
    assert gone is not None
    fleet.remove(gone)
    added = fleet.add("10.0.0.3:80")
    assert candidates.rows(subset).tolist() == [added.row]
    assert candidates.rows(None).tolist() == [0, 1, 2, 3, 4]


def test_subsets_beyond_the_bound_are_still_answered(fleet: Fleet) -> None:
    candidates = Candidates(fleet)
    for number in range(200):
        assert candidates.rows((f"10.0.0.{number}",)).tolist() == {1: [0, 1], 2: [2]}.get(number, [])
