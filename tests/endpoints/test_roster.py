"""Sets of endpoints become slots of the fleet, and who watches slots is told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.endpoints.endpoint import Endpoint
from picker.endpoints.roster import MOST_LINES, Roster
from scorer.fleet import UNKNOWN_ROUTES, Fleet

if TYPE_CHECKING:
    from scorer.fleet import Slot


class Pool:
    """A roster with a fleet, and what it told."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.told: list[tuple[str, str, str]] = []
        self.roster = Roster(
            self.fleet,
            on_added=lambda slot, endpoint: self.tell("added", slot, endpoint),
            on_removed=lambda slot, endpoint: self.tell("removed", slot, endpoint),
            on_changed=lambda slot, endpoint: self.tell("changed", slot, endpoint),
        )

    def tell(self, what: str, slot: Slot, endpoint: Endpoint) -> None:
        # Whoever is told may rely on the fleet: it holds the endpoint, or holds it no more.
        assert self.fleet.holds(slot) == (what != "removed")
        self.told.append((what, endpoint.address, endpoint.metrics_address))

    def apply(self, *endpoints: Endpoint) -> list[tuple[str, str, str]]:
        self.told.clear()
        self.roster.apply(endpoints)
        return self.told


@pytest.fixture
def pool() -> Pool:
    return Pool()


def endpoint(address: str, metrics: str = "", **labels: str) -> Endpoint:
    return Endpoint(address, metrics or address, labels=labels)


def test_what_comes_and_goes_is_told_once(pool: Pool) -> None:
    assert pool.apply(endpoint("a:1"), endpoint("b:1")) == [("added", "a:1", "a:1"), ("added", "b:1", "b:1")]
    assert pool.apply(endpoint("b:1"), endpoint("a:1")) == []
    assert pool.apply(endpoint("c:1"), endpoint("b:1")) == [
        ("removed", "a:1", "a:1"),
        ("added", "c:1", "c:1"),
    ]
    assert pool.apply() == [("removed", "b:1", "b:1"), ("removed", "c:1", "c:1")]
    assert len(pool.fleet) == 0


def test_an_endpoint_keeps_its_slot_and_numbers_while_others_change(pool: Pool) -> None:
    pool.apply(endpoint("a:1"), endpoint("b:1"))
    slot = pool.fleet.slot_of("b:1")
    assert slot is not None
    pool.fleet.own[slot.row] = 3
    pool.apply(endpoint("c:1"), endpoint("b:1", cluster="new"))
    assert pool.fleet.slot_of("b:1") == slot
    assert pool.fleet.own[slot.row] == 3


def test_labels_change_silently(pool: Pool) -> None:
    pool.apply(endpoint("a:1", cluster="old"))
    assert pool.apply(endpoint("a:1", cluster="new")) == []
    slot = pool.fleet.slot_of("a:1")
    assert slot is not None
    assert pool.fleet.labels[slot.row] == {"cluster": "new"}
    assert pool.roster.endpoints[slot].labels == {"cluster": "new"}


def test_metrics_elsewhere_are_a_change_of_the_same_endpoint(pool: Pool) -> None:
    pool.apply(endpoint("a:1"))
    slot = pool.fleet.slot_of("a:1")
    assert pool.apply(endpoint("a:1", "m:2")) == [("changed", "a:1", "m:2")]
    assert pool.fleet.slot_of("a:1") == slot


def test_routes_are_written_once_and_then_again_when_they_change(pool: Pool) -> None:
    def routes() -> tuple[str, ...] | None:
        slot = pool.fleet.slot_of("a:1")
        assert slot is not None
        number = int(pool.fleet.route_set[slot.row])
        return None if number == UNKNOWN_ROUTES else pool.fleet.route_sets[number]

    pool.apply(Endpoint("a:1", "a:1"))
    assert routes() is None
    pool.apply(Endpoint("a:1", "a:1", routes=("/chat",)))
    assert routes() == ("/chat",)
    slot = pool.fleet.slot_of("a:1")
    assert slot is not None
    pool.fleet.set_routes(slot, ("/chat", "/told"))  # by the endpoint itself, in answer to a probe
    assert pool.apply(Endpoint("a:1", "a:1", name="renamed", routes=("/chat",))) == []
    assert routes() == ("/chat", "/told")
    pool.apply(Endpoint("a:1", "a:1", routes=()))
    assert routes() == ()


def test_of_a_repeated_address_the_first_counts(pool: Pool) -> None:
    assert pool.apply(endpoint("a:1", "m:1"), endpoint("a:1", "m:2")) == [("added", "a:1", "m:1")]


def test_a_mass_change_is_not_one_line_each(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "picker.endpoints")
    pool.apply(*(endpoint(f"a:{port}") for port in range(1, 1001)))
    assert len(caplog.records) == MOST_LINES + 1
    assert caplog.records[-1].__dict__["fields"] == {"added": 1000, "endpoints": 1000}
    caplog.clear()
    pool.apply(*(endpoint(f"a:{port}") for port in range(2, 1001)))
    assert [record.message for record in caplog.records] == ["endpoint removed"]


_SETS = st.lists(
    st.dictionaries(st.integers(1, 6), st.tuples(st.integers(1, 2), st.sampled_from("xy")), max_size=6),
    max_size=6,
)


@given(_SETS)
@settings(max_examples=60, deadline=None)
def test_after_any_history_fleet_and_listeners_know_the_last_set(
    sets: list[dict[int, tuple[int, str]]],
) -> None:
    pool = Pool()
    watched: dict[str, str] = {}
    for members in sets:
        told = pool.apply(
            *(endpoint(f"a:{port}", f"m:{metrics}", l=label) for port, (metrics, label) in members.items())
        )
        for what, address, metrics_address in told:
            assert (address in watched) == (what != "added")
            if what == "removed":
                del watched[address]
            else:
                watched[address] = metrics_address
        assert watched == {f"a:{port}": f"m:{metrics}" for port, (metrics, _) in members.items()}
        assert len(pool.fleet) == len(pool.roster.endpoints) == len(members)
        for slot, there in pool.roster.endpoints.items():
            assert pool.fleet.holds(slot)
            assert pool.fleet.addresses[slot.row] == there.address
            assert pool.fleet.labels[slot.row] == there.labels
