"""Homes: the same for all pickers, moved only by their endpoint's going, and given up under load."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.affinity import model_affinity, prefix_home, ranks, session_affinity
from scorer.fleet import Fleet, key_of
from scorer.profile import built_in_profile
from tests.scorer.support import Asked, all_rows, fleet_of

NOW = 100.0


def home_of(fleet: Fleet, key: int) -> str:
    rows = all_rows(fleet)
    return fleet.addresses[int(rows[ranks(fleet, rows, key).argmax()])]


def test_numbers_of_texts_are_the_same_in_every_process_and_on_every_machine() -> None:
    assert key_of("10.0.0.1:8000") == 0xF496B4EA4921CB3
    fleet = fleet_of(1)
    assert ranks(fleet, all_rows(fleet), 1).tolist() == [0x75D673C05259C68D]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**64 - 1), st.permutations(range(9)), st.integers(0, 8))
def test_homes_do_not_depend_on_rows_and_only_those_of_the_gone_move(
    key: int, order: list[int], gone: int
) -> None:
    addresses = [f"10.1.0.{number}:80" for number in range(9)]
    one, other = Fleet(), Fleet()
    for number in order:
        one.add(addresses[number])
    for address in addresses:
        other.add(address)
    before = home_of(one, key)
    assert home_of(other, key) == before
    slot = one.slot_of(addresses[gone])
    assert slot is not None
    one.remove(slot)
    if before != addresses[gone]:
        assert home_of(one, key) == before


def test_homes_are_spread_evenly() -> None:
    fleet = fleet_of(10)
    counts = Counter(home_of(fleet, key_of(f"session {number}")) for number in range(5000))
    assert len(counts) == 10
    assert max(counts.values()) < 1.25 * 500


def test_a_session_has_one_home_and_without_one_nothing_is_said() -> None:
    fleet = fleet_of(5)
    rows = all_rows(fleet)
    assert session_affinity(fleet, rows, Asked(), NOW) is None
    scores = session_affinity(fleet, rows, Asked(session_id="\ud800 odd"), NOW)
    assert scores is not None
    assert sorted(scores.tolist()) == [0, 0, 0, 0, 1]


def test_a_model_goes_to_where_it_is_loaded_then_to_where_it_is_awaited_then_home() -> None:
    fleet = fleet_of(3)
    rows = all_rows(fleet)
    request = Asked(multiplexed_model_id="m")
    assert model_affinity(fleet, rows, Asked(), NOW) is None
    home = model_affinity(fleet, rows, request, NOW)
    assert home is not None
    assert sorted(home.tolist()) == [0, 0, 1]
    fleet.set_models(fleet.slot_at(0), frozenset(["m", "n"]))
    fleet.set_models(fleet.slot_at(1), frozenset(["n"]), frozenset(["m"]))
    held = model_affinity(fleet, rows, request, NOW)
    assert held is not None
    assert held.tolist() == [1.0, 0.5, 0.0]


def test_a_single_picker_needs_no_homes_for_prefixes() -> None:
    fleet = fleet_of(3)
    fleet.prefix_key = 7
    assert prefix_home(fleet, all_rows(fleet), Asked(), NOW) is None
    fleet.replicas = 2
    scores = prefix_home(fleet, all_rows(fleet), Asked(), NOW)
    assert scores is not None
    assert sorted(scores.tolist()) == [0.0, 0.5, 1.0]
    fleet.prefix_key = 0
    assert prefix_home(fleet, all_rows(fleet), Asked(), NOW) is None


def pickers(count: int, endpoints: int) -> list[Fleet]:
    """The views of as many pickers: the same endpoints, each with its own ledger."""
    fleets = [fleet_of(endpoints) for _ in range(count)]
    for fleet in fleets:
        fleet.replicas = count
    return fleets


def decide(fleet: Fleet, key: int, tokens: int, rng: Random) -> int:
    """One decision, counted in this picker's ledger."""
    fleet.prefix_key = key
    row = built_in_profile().run(fleet, all_rows(fleet), Asked(prompt_tokens=tokens), NOW, rng).rows[0]
    fleet.own[row] += 1
    fleet.own_tokens[row] += tokens
    return row


def test_pickers_that_do_not_talk_send_a_prefix_to_the_same_few_endpoints() -> None:
    fleets, rng = pickers(4, 16), Random(1)
    places: dict[int, set[int]] = {}
    first_choices: dict[int, Counter[int]] = {}
    for number in range(400):
        prefix, fleet = number % 100, fleets[rng.randrange(4)]
        row = decide(fleet, key_of(f"prefix {prefix}"), 1000, rng)
        places.setdefault(prefix, set()).add(row)
        first_choices.setdefault(prefix, Counter())[row] += 1
        fleet.own[row] -= 1  # it is answered before the next comes
        fleet.own_tokens[row] -= 1000
    assert max(len(rows) for rows in places.values()) == 1, "all agree where nobody is busy"
    assert len({next(iter(rows)) for rows in places.values()}) == 16


def test_a_prefix_that_everybody_sends_at_once_spills_over() -> None:
    fleets, rng = pickers(4, 8), Random(1)
    totals = np.zeros(8)
    for number in range(800):
        totals[decide(fleets[number % 4], key_of("hot"), 1000, rng)] += 1
    assert totals.max() <= 1.55 * totals.mean()
    assert totals.min() >= 0.5 * totals.mean()


def test_a_full_home_is_none_and_the_next_takes_its_place() -> None:
    fleet = fleet_of(4)
    fleet.replicas, fleet.prefix_key = 2, 7
    rows = all_rows(fleet)
    order = np.argsort(ranks(fleet, rows, 7))[::-1]
    fleet.own[order[0]] = 4
    fleet.own_tokens[order[2]] = 900
    scores = prefix_home(fleet, rows, Asked(prompt_tokens=100), NOW)
    assert scores is not None
    assert scores[order].tolist() == [0.0, 1.0, 0.0, 0.5]
