"""Slots and columns: a row's next tenant starts anew, and old slots no longer fit."""

from __future__ import annotations

import numpy as np
import pytest

from scorer.fleet import UNKNOWN_ROUTES, Fleet
from tests.scorer.support import fleet_of


def test_a_removed_endpoints_slot_is_not_held_and_its_row_starts_anew() -> None:
    fleet = fleet_of(1)
    old = fleet.slot_at(0)
    fleet.own[0] = 7.0
    fleet.set_routes(old, ["/a"])
    fleet.remove(old)
    new = fleet.add("10.0.0.9:8000")

    assert new.row == old.row
    assert not fleet.holds(old)
    assert fleet.holds(new)
    assert fleet.own[0] == 0.0
    assert fleet.route_set[0] == UNKNOWN_ROUTES
    fleet.remove(old)
    assert fleet.holds(new), "removing by an old slot must not hit the next tenant"


def test_an_address_is_added_once() -> None:
    fleet = fleet_of(1)
    with pytest.raises(ValueError, match=r"10\.0\.0\.1:8000 is in the fleet already"):
        fleet.add("10.0.0.1:8000")


def test_columns_grow_with_the_fleet_and_keep_their_values() -> None:
    fleet = fleet_of(3)
    fleet.own[2] = 5.0
    for number in range(100):
        fleet.add(f"10.1.0.{number}:80")
    assert len(fleet) == 103
    assert fleet.own[2] == 5.0
    assert np.isnan(fleet.scraped_load[102])
    assert fleet.capacity >= 103


def test_the_version_tells_a_change_of_membership() -> None:
    fleet = Fleet()
    before = fleet.version
    slot = fleet.add("10.0.0.1:80")
    added = fleet.version
    fleet.own[slot.row] = 1.0
    assert fleet.version == added != before
    fleet.remove(slot)
    assert fleet.version != added


def test_a_list_of_addresses_that_was_kept_is_not_changed() -> None:
    fleet = fleet_of(2)
    kept = fleet.addresses
    fleet.remove(fleet.slot_at(0))
    fleet.add("10.9.9.9:1")
    assert kept == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert fleet.addresses == ["10.9.9.9:1", "10.0.0.2:8000"]


def test_equal_route_sets_share_an_entry_and_old_ones_do_not_pile_up() -> None:
    fleet = fleet_of(2)
    first, second = fleet.slot_at(0), fleet.slot_at(1)
    fleet.set_routes(first, ["/b", "/a"])
    fleet.set_routes(second, ["/a", "/b"])
    assert fleet.route_set[0] == fleet.route_set[1]
    for number in range(200):
        fleet.set_routes(second, [f"/{number}"])
    assert len(fleet.route_sets) < 20
    assert fleet.route_sets[fleet.route_set[0]] == ("/a", "/b")
    assert fleet.route_sets[fleet.route_set[1]] == ("/199",)


def test_the_cluster_is_read_from_the_label_of_kuberay() -> None:
    fleet = Fleet()
    old = fleet.add("10.0.0.1:8000", {"ray.io/cluster": "old"})
    new = fleet.add("10.0.0.2:8000", {"ray.io/cluster": "new"})
    alone = fleet.add("10.0.0.3:8000")
    assert [fleet.clusters[fleet.cluster[slot.row]] for slot in (old, new)] == ["old", "new"]
    assert fleet.cluster[alone.row] == -1


def test_names_of_clusters_that_are_gone_are_forgotten() -> None:
    fleet = Fleet()
    stays = fleet.add("10.0.0.1:8000", {"ray.io/cluster": "stays"})
    for upgrade in range(100):
        fleet.remove(fleet.add("10.0.0.2:8000", {"ray.io/cluster": f"cluster-{upgrade}"}))
    assert len(fleet.clusters) <= 2
    assert fleet.clusters[fleet.cluster[stays.row]] == "stays"


def test_new_labels_move_an_endpoint_to_another_cluster() -> None:
    fleet = Fleet()
    slot = fleet.add("10.0.0.1:8000", {"ray.io/cluster": "old"})
    version = fleet.version
    fleet.relabel(slot, {"ray.io/cluster": "new"})
    assert fleet.clusters[fleet.cluster[slot.row]] == "new"
    assert fleet.version != version
