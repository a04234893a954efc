"""The cluster is drawn first, by weight: how exact that is, and when it does not hold."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.routing.clusters import ClusterDraw, Drawn, Rotation, Turn
from scorer.fleet import CLUSTER_LABEL, Fleet

PERCENTS = st.lists(st.integers(0, 100), min_size=1, max_size=4).map(
    lambda cuts: [b - a for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 100], strict=True)]
)


class Pool:
    """Two endpoints in each of the clusters, whose names are letters; a dot is an endpoint without one."""

    def __init__(self, clusters: str = "ab", *, spill: bool = True, sticky: bool = False) -> None:
        self.fleet = Fleet()
        self.draw = ClusterDraw(self.fleet, spill=spill, sticky=sticky)
        for name in clusters:
            self.add(name)
            self.add(name)

    def add(self, cluster: str) -> None:
        labels = {} if cluster == "." else {CLUSTER_LABEL: cluster}
        self.fleet.add(f"10.0.0.{len(self.fleet) + 1}:80", labels)

    def rows(self, clusters: str | None = None) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        names = [self.fleet.labels[row].get(CLUSTER_LABEL, ".") for row in range(len(self.fleet))]
        chosen = [row for row, name in enumerate(names) if clusters is None or name in clusters]
        return np.array(chosen, dtype=np.intp)

    def next(self, eligible: str | None = None, *, subset: str | None = None) -> str:
        """Whose endpoints the next request has; empty for a refusal."""
        drawn = self.draw.draw(self.rows(subset), self.rows(eligible if subset is None else subset))
        self.draw.took(drawn.turn)
        return self.cluster(drawn)

    def cluster(self, drawn: Drawn) -> str:
        names = {self.fleet.labels[row].get(CLUSTER_LABEL, ".") for row in drawn.rows.tolist()}
        assert len(names) <= 1, "fallbacks come from the same cluster"
        return "".join(names)

    def counts(self, requests: int, eligible: str | None = None) -> dict[str, int]:
        return dict(Counter(self.next(eligible) for _ in range(requests)))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 400))
@settings(max_examples=100, deadline=None)
def test_after_any_number_of_turns_each_is_within_one_of_its_share(weights: list[int], turns: int) -> None:
    rotation = Rotation(weights)
    counts = [0] * len(weights)
    for number in range(1, turns + 1):
        member = rotation.next()
        rotation.took(member)
        counts[member] += 1
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - Fraction(number * weight, sum(weights))) < 1


@given(PERCENTS, st.integers(0, 250))
@settings(max_examples=50, deadline=None)
def test_any_hundred_requests_in_a_row_have_the_percents_exactly(percents: list[int], before: int) -> None:
    names = "abcde"[: len(percents)]
    pool = Pool(names)
    pool.draw.set_weights(dict(zip(names, percents, strict=True)))
    pool.counts(before)
    counts = pool.counts(100)
    assert [counts.get(name, 0) for name in names] == percents


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 130)), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_count_starts_anew_with_each_change_of_the_weights(steps: list[tuple[int, int]]) -> None:
    pool = Pool()
    last = -1
    for new, requests in steps:
        if new == last:
            continue
        last = new
        pool.draw.set_weights({"a": 100 - new, "b": new})
        to_new = list(accumulate(pool.next() == "b" for _ in range(requests)))
        for number, count in enumerate(to_new, start=1):
            assert abs(count - number * new / 100) < 1


def test_the_same_weights_again_are_no_change() -> None:
    pool = Pool()
    pool.draw.set_weights({"a": 50, "b": 50})
    first = pool.next()
    pool.draw.set_weights({"b": 50, "a": 50, "c": 0})
    assert pool.next() != first


@pytest.mark.parametrize("weights", [None, {}, {"a": 0, "b": 0}])
def test_without_weights_the_pool_is_one(weights: dict[str, int] | None) -> None:
    pool = Pool("ab.")
    pool.draw.set_weights({"a": 1})
    pool.draw.set_weights(weights)
    drawn = pool.draw.draw(pool.rows(), pool.rows("b."))
    assert drawn.rows.tolist() == pool.rows("b.").tolist()
    assert drawn.turn.cluster is None


def test_a_weight_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="below zero"):
        Pool().draw.set_weights({"a": -1})


def test_a_cluster_of_weight_zero_or_without_weight_gets_nothing() -> None:
    pool = Pool("abc.")
    pool.draw.set_weights({"a": 0, "b": 100})
    assert pool.counts(100) == {"b": 100}


class TestSpill:
    def test_a_cluster_with_nobody_eligible_spills_to_the_others_by_their_weights(self) -> None:
        pool = Pool("abc")
        pool.draw.set_weights({"a": 50, "b": 40, "c": 10})
        assert pool.counts(100, eligible="bc") == {"b": 80, "c": 20}

    def test_only_what_spills_goes_elsewhere(self) -> None:
        pool = Pool("abc")
        pool.draw.set_weights({"a": 80, "b": 20, "c": 0})
        assert pool.counts(100, eligible="bc") == {"b": 100}
        assert pool.counts(100, eligible="c.") == {"c": 100}

    def test_clusters_of_weight_zero_share_what_nobody_else_can_take(self) -> None:
        pool = Pool("ab.")
        pool.draw.set_weights({"c": 100})
        assert pool.counts(90) == {"a": 30, "b": 30, ".": 30}

    def test_the_ratio_is_at_once_back_when_the_cluster_is(self) -> None:
        pool = Pool()
        pool.draw.set_weights({"a": 90, "b": 10})
        pool.counts(50)
        pool.counts(300, eligible="a")
        counts = pool.counts(100)
        assert counts == {"a": 90, "b": 10}

    def test_without_spill_the_share_of_the_cluster_is_refused(self) -> None:
        pool = Pool(spill=False)
        pool.draw.set_weights({"a": 75, "b": 25})
        assert pool.counts(100, eligible="b") == {"": 75, "b": 25}

    def test_also_where_the_cluster_is_not_in_the_pool(self) -> None:
        pool = Pool("b", spill=False)
        pool.draw.set_weights({"a": 75, "b": 25})
        assert pool.counts(100) == {"": 75, "b": 25}


class TestSubset:
    @pytest.mark.parametrize("spill", [True, False])
    def test_is_drawn_from_those_it_allows(self, spill: bool) -> None:
        pool = Pool("abc", spill=spill)
        pool.draw.set_weights({"a": 50, "b": 25, "c": 25})
        assert Counter(pool.next(subset="bc") for _ in range(100)) == {"b": 50, "c": 50}

    def test_does_not_disturb_the_ratio_of_the_rest(self) -> None:
        pool = Pool()
        pool.draw.set_weights({"a": 70, "b": 30})
        served = []
        for number in range(100):
            served.append(pool.next())
            if number % 3:
                assert pool.next(subset="a") == "a"
        assert Counter(served) == {"a": 70, "b": 30}


class TestAskedTwice:
    """A gateway that buffers bodies asks for a provisional decision, then for the final one."""

    def test_keeps_the_cluster_and_counts_one_turn(self) -> None:
        pool = Pool()
        pool.draw.set_weights({"a": 60, "b": 40})
        served = []
        for _ in range(100):
            provisional = pool.draw.draw(pool.rows(), pool.rows())
            pool.draw.took(provisional.turn)
            final = pool.draw.draw(pool.rows(), pool.rows(), kept=provisional.turn)
            pool.draw.took(final.turn)
            assert pool.cluster(final) == pool.cluster(provisional)
            served.append(pool.cluster(final))
        assert Counter(served) == {"a": 60, "b": 40}

    def test_a_spill_is_kept_while_the_cluster_has_nobody(self) -> None:
        pool = Pool("abc")
        pool.draw.set_weights({"a": 90, "b": 5, "c": 5})
        turn = pool.draw.draw(pool.rows(), pool.rows("bc")).turn
        assert turn.cluster == "a"
        pool.draw.took(turn)
        again = pool.draw.draw(pool.rows(), pool.rows("bc"), kept=turn)
        assert pool.cluster(again) == turn.served
        assert again.turn.counts == ()
        other = "b" if turn.served == "c" else "c"
        assert pool.cluster(pool.draw.draw(pool.rows(), pool.rows(other), kept=turn)) == other
        assert pool.cluster(pool.draw.draw(pool.rows(), pool.rows(), kept=turn)) == "a"

    def test_what_was_decided_before_there_were_weights_is_drawn_now(self) -> None:
        pool = Pool()
        turn = pool.draw.draw(pool.rows(), pool.rows()).turn
        pool.draw.set_weights({"b": 100})
        assert pool.cluster(pool.draw.draw(pool.rows(), pool.rows(), kept=turn)) == "b"


def test_a_turn_that_was_not_taken_is_not_counted() -> None:
    pool = Pool()
    pool.draw.set_weights({"a": 50, "b": 50})
    assert len({pool.cluster(pool.draw.draw(pool.rows(), pool.rows())) for _ in range(10)}) == 1


class TestSticky:
    def held(self, pool: Pool, holders: str, eligible: str | None = None) -> Drawn:
        drawn = pool.draw.draw(pool.rows(), pool.rows(eligible), held=pool.rows(holders))
        pool.draw.took(drawn.turn)
        return drawn

    def test_off_the_ratio_wins(self) -> None:
        pool = Pool()
        pool.draw.set_weights({"a": 50, "b": 50})
        assert Counter(pool.cluster(self.held(pool, "a")) for _ in range(100)) == {"a": 50, "b": 50}

    def test_on_the_holder_of_a_session_wins_and_the_rest_has_the_ratio(self) -> None:
        pool = Pool(sticky=True)
        pool.draw.set_weights({"a": 50, "b": 50})
        free = []
        for _ in range(100):
            assert pool.cluster(self.held(pool, "a")) == "a"
            free.append(pool.next())
        assert Counter(free) == {"a": 50, "b": 50}

    @pytest.mark.parametrize(("holders", "eligible"), [("a", "b"), ("c", None), (".", None)])
    def test_a_holder_that_cannot_be_had_or_has_no_weight_does_not_count(
        self, holders: str, eligible: str | None
    ) -> None:
        pool = Pool("abc.", sticky=True)
        pool.draw.set_weights({"a": 1, "b": 99, "c": 0})
        assert pool.cluster(self.held(pool, holders, eligible)) == "b"


@given(st.lists(st.tuples(st.sampled_from("+-"), st.sampled_from("abcdef.")), max_size=40))
@settings(max_examples=50, deadline=None)
def test_whoever_comes_and_goes_a_draw_gives_one_cluster_with_a_weight_if_there_is_one(
    steps: list[tuple[str, str]],
) -> None:
    pool = Pool("")
    pool.draw.set_weights({"a": 3, "b": 2, "c": 1, "d": 0})
    names: dict[int, str] = {}
    for number, (sign, name) in enumerate(steps):
        if sign == "+":
            labels = {} if name == "." else {CLUSTER_LABEL: name}
            names[pool.fleet.add(f"10.0.1.1:{number + 1}", labels).row] = name
        else:
            for row in [row for row, there in names.items() if there == name]:
                pool.fleet.remove(pool.fleet.slot_at(row))
                del names[row]
        rows = np.array(sorted(names), dtype=np.intp)
        drawn = pool.draw.draw(rows, rows)
        pool.draw.took(drawn.turn)
        served = {names[row] for row in drawn.rows.tolist()}
        assert len(served) == min(1, len(names))
        assert served <= set("abc") or not set(names.values()) & set("abc")
        assert len(drawn.rows) == sum(there in served for there in names.values())


def test_many_sets_of_clusters_do_not_pile_up() -> None:
    pool = Pool("abcdefgh")
    pool.draw.set_weights(dict.fromkeys("abcdefgh", 1))
    for number in range(1, 256):
        pool.next(subset="".join(name for bit, name in enumerate("abcdefgh") if number >> bit & 1))
    assert len(pool.draw._rotations) <= 16


def test_nobody_at_all_is_a_refusal() -> None:
    pool = Pool("")
    pool.draw.set_weights({"a": 1})
    drawn = pool.draw.draw(pool.rows(), pool.rows())
    assert len(drawn.rows) == 0
    assert drawn.turn == Turn("", "")


def test_pinned_weights_go_before_told_ones_until_they_are_taken_back() -> None:
    draw = ClusterDraw(Fleet())
    draw.set_weights({"old": 90, "new": 10})
    draw.pin({"old": 50, "new": 50})
    assert draw.weights == {"old": 50, "new": 50}
    draw.set_weights({"old": 0, "new": 100})
    assert draw.weights == {"old": 50, "new": 50}
    draw.pin(None)
    assert draw.weights == {"new": 100}
