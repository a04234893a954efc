"""Which row holds which prefix: examples first, then whatever happens against plain dictionaries."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from scorer import prefix
from scorer.prefix import DEFAULT_CAPACITY, Added, PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scorer.prefix_hash import Blocks

_ROOMY = 1 << 30
_BLOCK = 256
"""Bytes of a block of 64 tokens."""


def _prompt(blocks: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(blocks * _BLOCK)


def _matched(index: PrefixIndex, blocks: Blocks, rows: int = 4) -> list[float]:
    out = np.full(rows, 7.0)
    found = index.match(blocks, out)
    assert found == out.any()
    matched: list[float] = out.tolist()
    return matched


def test_nothing_is_known_at_first() -> None:
    index = PrefixIndex(_ROOMY)
    assert _matched(index, index.blocks(_prompt(3))) == [0, 0, 0, 0]
    assert index.pairs == 0


def test_a_row_holds_what_was_sent_there_as_far_as_prompts_agree() -> None:
    index = PrefixIndex(_ROOMY)
    index.insert(1, index.blocks(_prompt(10)))
    index.insert(3, index.blocks(_prompt(4)))
    assert _matched(index, index.blocks(_prompt(10) + b"and more")) == [0, 640, 0, 256]
    assert _matched(index, index.blocks(_prompt(6) + _prompt(5, seed=1))) == [0, 384, 0, 256]
    assert _matched(index, index.blocks(_prompt(1))) == [0, 64, 0, 64]
    assert _matched(index, index.blocks(_prompt(10, seed=1))) == [0, 0, 0, 0]
    assert index.pairs == 14


@pytest.mark.parametrize("prompt", [b"", b"hello", _prompt(1)[:-1]])
def test_less_than_a_block_is_not_indexed(prompt: bytes) -> None:
    index = PrefixIndex(_ROOMY)
    blocks = index.blocks(prompt)
    assert blocks.tokens == 0
    added = index.insert(0, blocks)
    assert _matched(index, blocks) == [0, 0, 0, 0]
    index.take_back(added)
    index.keep_only(0, blocks, 0)
    assert index.pairs == 0


def test_blocks_tell_the_tokens_of_whole_blocks() -> None:
    index = PrefixIndex(_ROOMY, block_tokens=16, bytes_per_token=4)
    assert index.blocks(_prompt(1)[:-1]).tokens == 3 * 16
    assert index.blocks_of_ids([5, 6, 7, 8]).tokens == 4 * 16
    assert index.blocks_of_ids([]).tokens == 0


def test_a_block_that_is_not_made_of_words_is_refused() -> None:
    with pytest.raises(ValueError, match="a positive multiple of 8 bytes, not 3"):
        PrefixIndex(_ROOMY, block_tokens=1, bytes_per_token=3)


def test_salts_share_nothing() -> None:
    index = PrefixIndex(_ROOMY)
    index.insert(0, index.blocks(_prompt(3), b"llama"))
    index.insert(1, index.blocks(_prompt(3), b"llama/adapter"))
    assert _matched(index, index.blocks(_prompt(3), b"llama")) == [192, 0, 0, 0]
    assert _matched(index, index.blocks(_prompt(3))) == [0, 0, 0, 0]


def test_identifiers_of_traces_stand_for_blocks() -> None:
    index = PrefixIndex(_ROOMY, block_tokens=512)
    index.insert(2, index.blocks_of_ids([0, 14, 15, 16]))
    assert _matched(index, index.blocks_of_ids([0, 14, 99])) == [0, 0, 1024, 0]
    assert _matched(index, index.blocks_of_ids(np.array([0, 14, 15, 16]), b"x")) == [0, 0, 0, 0]


def test_a_failed_request_is_taken_back_and_what_was_there_before_is_not() -> None:
    index = PrefixIndex(_ROOMY)
    index.insert(0, index.blocks(_prompt(3)))
    added = index.insert(0, index.blocks(_prompt(8)))
    assert added.known == 3
    index.take_back(added)
    index.take_back(added)
    assert _matched(index, index.blocks(_prompt(8))) == [192, 0, 0, 0]
    assert index.pairs == 3


def test_what_another_request_used_since_is_not_taken_back() -> None:
    index = PrefixIndex(_ROOMY)
    added = index.insert(0, index.blocks(_prompt(8)))
    index.insert(0, index.blocks(_prompt(5)))
    index.take_back(added)
    assert _matched(index, index.blocks(_prompt(8))) == [320, 0, 0, 0]


def test_taking_back_leaves_other_rows_alone() -> None:
    index = PrefixIndex(_ROOMY)
    added = index.insert(0, index.blocks(_prompt(8)))
    index.insert(1, index.blocks(_prompt(8)))
    index.take_back(added)
    assert _matched(index, index.blocks(_prompt(8))) == [0, 512, 0, 0]


def test_a_forgotten_row_starts_anew_and_old_handles_do_it_no_harm() -> None:
    index = PrefixIndex(_ROOMY)
    old = index.insert(0, index.blocks(_prompt(8)))
    index.insert(1, index.blocks(_prompt(2)))
    index.forget(0)
    index.forget(0)
    index.forget(17)
    assert _matched(index, index.blocks(_prompt(8))) == [0, 128, 0, 0]
    assert index.pairs == 2
    index.insert(0, index.blocks(_prompt(4)))
    index.take_back(old)
    assert _matched(index, index.blocks(_prompt(8))) == [256, 128, 0, 0]


def test_forgetting_costs_nothing_now_and_little_later() -> None:
    index = PrefixIndex(_ROOMY)
    for seed in range(500):
        index.insert(0, index.blocks_of_ids([seed, 1, 2]))
    index.forget(0)
    assert index.pairs == 0
    pieces = len(index._pieces.edges)
    for seed in range(500):
        index.insert(1, index.blocks_of_ids([1000 + seed]))
    assert len(index._pieces.edges) <= pieces + 8, "the places of what was forgotten are used again"
    assert not index._forgotten


def test_a_row_drops_what_it_used_least_recently_the_end_first() -> None:
    index = PrefixIndex(_ROOMY)
    index.set_capacity(0, 10)
    first, second, third = (index.blocks(_prompt(4, seed)) for seed in (1, 2, 3))
    index.insert(0, first)
    index.insert(0, second)
    index.insert(0, first)
    index.insert(0, third)
    assert _matched(index, first) == [256, 0, 0, 0]
    assert _matched(index, second) == [128, 0, 0, 0]
    assert _matched(index, third) == [256, 0, 0, 0]
    assert index.pairs == 10


def test_of_a_prompt_longer_than_the_cache_the_beginning_stays() -> None:
    index = PrefixIndex(_ROOMY)
    index.set_capacity(0, 5)
    index.insert(0, index.blocks(_prompt(3, seed=1)))
    index.take_back(index.insert(1, index.blocks(_prompt(8))))
    index.insert(0, index.blocks(_prompt(8)))
    assert _matched(index, index.blocks(_prompt(8))) == [320, 0, 0, 0]
    assert _matched(index, index.blocks(_prompt(3, seed=1))) == [0, 0, 0, 0]


@pytest.mark.parametrize("capacity", [0, -3])
def test_a_row_without_a_cache_holds_nothing(capacity: int) -> None:
    index = PrefixIndex(_ROOMY)
    index.insert(0, index.blocks(_prompt(4)))
    index.set_capacity(0, capacity)
    assert index.pairs == 0
    index.insert(0, index.blocks(_prompt(4)))
    assert _matched(index, index.blocks(_prompt(4))) == [0, 0, 0, 0]


def test_a_capacity_unknown_is_the_default_also_after_forgetting() -> None:
    index = PrefixIndex(_ROOMY)
    index.set_capacity(0, 5)
    index.forget(0)
    index.insert(0, index.blocks_of_ids(range(DEFAULT_CAPACITY + 5)))
    assert index.pairs == DEFAULT_CAPACITY


def test_an_answer_that_tells_fewer_cached_tokens_corrects() -> None:
    index = PrefixIndex(_ROOMY)
    long, branch = index.blocks(_prompt(8)), index.blocks(_prompt(6) + _prompt(2, seed=1))
    for row in (0, 1):
        index.insert(row, long)
        index.insert(row, branch)
    index.keep_only(0, long, 5 * 64 + 63)
    index.keep_only(2, long, 0)
    assert _matched(index, branch) == [320, 512, 0, 0]
    assert _matched(index, long) == [320, 512, 0, 0]
    index.keep_only(1, long, 8 * 64)
    assert _matched(index, long) == [320, 512, 0, 0]
    index.keep_only(1, long, -1)
    assert index.pairs == 5


def test_too_much_to_follow_starts_the_row_anew_with_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "_FOLLOWED_AT_MOST", 10)
    index = PrefixIndex(_ROOMY)
    index.set_capacity(0, 50)
    for last in range(20):
        index.insert(0, index.blocks_of_ids([1, 2, 100 + last]))
    index.insert(0, index.blocks_of_ids([7]))
    index.keep_only(0, index.blocks_of_ids([1, 2, 3]), 64)
    assert _matched(index, index.blocks_of_ids([1, 2, 100])) == [64, 0, 0, 0]
    index.insert(0, index.blocks_of_ids(range(1000, 1100)))
    assert index.pairs == 50, "its capacity is still known"


def test_a_thousand_rows_may_hold_the_same() -> None:
    index = PrefixIndex(_ROOMY)
    system = list(range(1600))
    for row in range(1000):
        index.insert(row, index.blocks_of_ids([*system, 5000 + row, 1, 2]))
    assert index.nbytes < index.pairs / 4, "many rows share an edge"
    assert _matched(index, index.blocks_of_ids(system), 1000) == [1600 * 64] * 1000
    own = _matched(index, index.blocks_of_ids([*system, 5400, 1, 3]), 1000)
    assert own[400] == 1602 * 64
    assert set(own[:400] + own[401:]) == {1600 * 64}
    index.insert(7, index.blocks_of_ids([*system[:300], 1]))
    assert _matched(index, index.blocks_of_ids(system), 1000) == [1600 * 64] * 1000


def test_rows_beyond_the_array_are_left_out_and_later_rows_fit() -> None:
    index = PrefixIndex(_ROOMY)
    blocks = index.blocks(_prompt(2))
    for row in (0, 40, 300):
        index.insert(row, blocks)
    assert _matched(index, blocks, 16) == [128, *[0] * 15]
    assert sum(_matched(index, blocks, 512)) == 3 * 128
    index.forget(0)
    index.forget(40)
    out = np.ones(16)
    index.match(blocks, out)
    assert not out.any()


def _fill(index: PrefixIndex, rng: random.Random, rows: int, prompts: int, new: int) -> None:
    """Prompts of a system prompt of 8 blocks and ``new`` of their own, to rows at random."""
    for _ in range(prompts):
        own = [rng.getrandbits(60) for _ in range(new)]
        index.insert(rng.randrange(rows), index.blocks_of_ids([*range(8), *own]))


@pytest.mark.parametrize("new", [8, 16, 100])
def test_a_pair_takes_at_most_16_bytes_beside_its_blocks_hash(new: int) -> None:
    index = PrefixIndex(_ROOMY)
    _fill(index, random.Random(1), rows=20, prompts=24_000 // new, new=new)
    hashes = 8 * (index.pairs - 20 * 8 + 8)
    assert index.nbytes - hashes <= 16 * index.pairs


@pytest.mark.parametrize("new", [1, 7, 100])
def test_memory_is_bounded_whatever_comes_and_the_newest_is_found(new: int) -> None:
    most = 300_000  # a million blocks of prompts of 100 would take 9 MB
    index = PrefixIndex(most)
    rng = random.Random(new)
    for _ in range(20):
        _fill(index, rng, rows=50, prompts=500, new=new)
        assert index.nbytes <= most
        last = index.blocks_of_ids([*range(8), *(rng.getrandbits(60) for _ in range(new))])
        index.insert(7, last)
        assert index.nbytes <= most
        assert _matched(index, last, 50)[7] == last.tokens
    assert index.pairs > 1000, "and not all is thrown away"


def test_other_kinds_of_prompts_take_over_the_memory() -> None:
    most = 300_000
    index = PrefixIndex(most)
    rng = random.Random(1)
    for new, prompts in ((1, 5000), (1600, 60), (2, 5000), (400, 100)):
        _fill(index, rng, rows=5, prompts=prompts, new=new)
        assert index.nbytes <= most
        last = index.blocks_of_ids(range(10_000, 10_000 + new))
        index.insert(1, last)
        assert _matched(index, last)[1] == last.tokens


def test_forgotten_rows_make_room_first() -> None:
    most = 200_000
    index = PrefixIndex(most)
    rng = random.Random(1)
    _fill(index, rng, rows=1, prompts=100, new=100)
    kept = index.blocks_of_ids([1, 2, 3])
    index.insert(1, kept)
    index.forget(0)
    _fill(index, rng, rows=1, prompts=150, new=100)
    assert index.nbytes <= most
    assert _matched(index, kept) == [0, 192, 0, 0]


def test_memory_too_small_for_anything_serves_on() -> None:
    index = PrefixIndex(0)
    index.insert(0, index.blocks(_prompt(100)))
    assert _matched(index, index.blocks(_prompt(100))) == [0, 0, 0, 0]
    assert index.pairs == 0


_ROWS = 4
_IDS = st.lists(st.sampled_from([0, 0, 0, 1, 2]), max_size=12).map(tuple)
_Prefix = tuple[int, ...]


def _drop(blocks: OrderedDict[_Prefix, int], capacity: int) -> None:
    while len(blocks) > capacity:
        blocks.popitem(last=False)


class PrefixMachine(RuleBasedStateMachine):
    """The index beside a dictionary per row, from a prefix to the insertion that used it last."""

    handles = Bundle("handles")
    rows = st.integers(0, _ROWS - 1)

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(_ROOMY)
        self.held: list[OrderedDict[_Prefix, int]] = [OrderedDict() for _ in range(_ROWS)]
        self.capacity = [DEFAULT_CAPACITY] * _ROWS
        self.insertions = 0

    @rule(target=handles, row=rows, ids=_IDS)
    def insert(self, row: int, ids: _Prefix) -> tuple[Added, int, _Prefix, int]:
        self.insertions += 1
        held, indexed = self.held[row], ids[: self.capacity[row]]
        known = sum(indexed[: end + 1] in held for end in range(len(indexed)))
        added = self.index.insert(row, self.index.blocks_of_ids(ids))
        assert added.known == known
        for end in range(len(indexed), 0, -1):
            held[indexed[:end]] = self.insertions
            held.move_to_end(indexed[:end])
        _drop(held, self.capacity[row])
        return added, row, ids, self.insertions

    @rule(handle=handles)
    def take_back(self, handle: tuple[Added, int, _Prefix, int]) -> None:
        added, row, ids, at = handle
        self.index.take_back(added)
        for end in range(added.known, len(ids)):
            if self.held[row].get(ids[: end + 1]) == at:
                del self.held[row][ids[: end + 1]]

    @rule(row=rows)
    def forget(self, row: int) -> None:
        self.index.forget(row)
        self.held[row].clear()
        self.capacity[row] = DEFAULT_CAPACITY

    @rule(row=rows, capacity=st.sampled_from([0, 1, 3, 8, 15]))
    def set_capacity(self, row: int, capacity: int) -> None:
        self.index.set_capacity(row, capacity)
        self.capacity[row] = capacity
        _drop(self.held[row], capacity)

    @rule(row=rows, ids=_IDS, tokens=st.integers(0, 12 * 64))
    def keep_only(self, row: int, ids: _Prefix, tokens: int) -> None:
        self.index.keep_only(row, self.index.blocks_of_ids(ids), tokens)
        beyond = tokens // 64 + 1
        if len(ids) >= beyond:
            for held in [held for held in self.held[row] if held[:beyond] == ids[:beyond]]:
                del self.held[row][held]

    @rule(ids=_IDS)
    def match(self, ids: _Prefix) -> None:
        assert _matched(self.index, self.index.blocks_of_ids(ids), _ROWS) == [
            64 * self._consecutive(held, ids) for held in self.held
        ]

    @invariant()
    def counts(self) -> None:
        assert self.index.pairs == sum(map(len, self.held))

    @invariant()
    def holds_what_it_has_to(self) -> None:
        for row, held in enumerate(self.held):
            for longest in held:
                assert _matched(self.index, self.index.blocks_of_ids(longest), _ROWS)[row] == 64 * len(
                    longest
                )

    @staticmethod
    def _consecutive(held: OrderedDict[_Prefix, int], ids: Sequence[int]) -> int:
        ends = range(1, len(ids) + 1)
        return next((end - 1 for end in ends if tuple(ids[:end]) not in held), len(ids))


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
