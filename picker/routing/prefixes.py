"""What the prefix index is asked and told in the course of a request's life.

Decisions go in at once, so that requests of one burst with the same beginning meet; what an endpoint did not
compute after all is taken out again. Writes the fleet's column ``matched_tokens`` and its ``prefix_key``.

Before proxies nothing is compared: which engine is behind them is not the picker's choice.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from picker.inference.question import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.inference.question import Question
    from picker.inference.usage import Usage
    from picker.routing.ledger import Entry
    from scorer.fleet import Fleet, Slot
    from scorer.prefix import PrefixIndex
    from scorer.prefix_hash import Blocks

DEFAULT_CACHE_TOKENS = 400_000
"""Assumed size of a KV cache that no page tells; that of an 8-billion model on a card of 80 GB. An engine
with a smaller one is found out by the tokens that its answers say were cached."""

_CLEARLY_LESS = 0.9
"""Of the expected cached share, what an answer has to tell at least; the rest is in estimating tokens."""
_TRUST_GAIN = 0.1
_DISTRUSTED = 0.05
"""Below that the endpoint is taken to cache nothing."""


class Hits:
    """How much of the prompts the chosen endpoints were believed to hold, for whoever tells it.

    ``ratios`` and ``lengths`` (bytes) are counts by bucket, the last beyond all bounds. The bounds are those
    of the reference picker's histograms.
    """

    __slots__ = ("length_sum", "lengths", "ratio_sum", "ratios")

    ratio_bounds = tuple(tenth / 10 for tenth in range(11))
    length_bounds = (0.0, *(float(1 << power) for power in range(4, 17)))

    def __init__(self) -> None:
        self.ratios = [0] * (len(self.ratio_bounds) + 1)
        self.lengths = [0] * (len(self.length_bounds) + 1)
        self.ratio_sum = self.length_sum = 0.0

    def add(self, matched: float, tokens: float) -> None:
        """Count a decision: of ``tokens`` of the prompt, ``matched`` are held."""
        ratio = min(1.0, matched / tokens)
        self.ratios[bisect_left(self.ratio_bounds, ratio)] += 1
        self.ratio_sum += ratio
        length = matched * BYTES_PER_TOKEN
        self.lengths[bisect_left(self.length_bounds, length)] += 1
        self.length_sum += length


class Prefixes:
    """An index, or none (then nothing ever matches), and how well it foresaw what answers told."""

    def __init__(
        self,
        fleet: Fleet,
        index: PrefixIndex | None,
        blocks_of: Callable[[Question], Blocks | None] | None,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._blocks_of = blocks_of or self._blocks_of_prompt
        self._written = False
        self._tenants: dict[int, Slot] = {}
        """Whose entries each row of the index has."""
        self._version = -1
        self.hits = Hits()
        self._trust: dict[Slot, float] = {}
        """Where answers told less than was expected: told over expected."""
        self.expected_tokens = self.told_tokens = 0
        """Cached tokens of all answers that told them: as expected at the decision, and as told."""

    @property
    def pairs(self) -> int:
        """Pairs of a block and an endpoint that can match."""
        return self._index.pairs if self._index is not None else 0

    def sync(self) -> None:
        """Forget endpoints that are gone, if the fleet changed since the last call."""
        if self._version == self._fleet.version:
            return
        self._version = self._fleet.version
        for slot in [slot for slot in self._tenants.values() if not self._fleet.holds(slot)]:
            self._forget(slot)

    def look_up(self, question: Question) -> Blocks | None:
        """Write what each endpoint holds of the prompt; its blocks, or None where none are compared."""
        fleet, index = self._fleet, self._index
        fleet.prefix_key = 0
        if index is None or fleet.has_proxies:
            self.clear()
            return None
        blocks = self._blocks_of(question)
        if blocks is None or not len(blocks.hashes):
            self.clear()
            return None
        column = fleet.matched_tokens
        found = index.match(blocks, column)
        self._written = found
        if fleet.replicas > 1:
            common = float(np.median(column[fleet.alive])) if found else 0.0
            depth = int(common) // index.block_tokens
            fleet.prefix_key = int(blocks.hashes[min(depth, len(blocks.hashes) - 1)])
        if found:
            for slot, trust in self._trust.items():
                column[slot.row] *= trust
            if blocks.tokens > question.prompt_tokens:
                np.minimum(column, question.prompt_tokens, out=column)
        return blocks

    def clear(self) -> None:
        """Nobody holds anything of what is decided next."""
        if self._written:
            self._fleet.matched_tokens.fill(0.0)
            self._written = False

    def sent(self, entry: Entry, blocks: Blocks, matched: float) -> None:
        """The request went to its endpoint, which now holds all of its prompt."""
        if self._index is not None:
            slot = entry.slot
            if slot.row not in self._tenants:
                self._tenants[slot.row] = slot
                self._set_capacity(slot)
            entry.blocks, entry.matched = blocks, matched
            entry.added = self._index.insert(slot.row, blocks)
            if entry.prompt_tokens:
                self.hits.add(matched, entry.prompt_tokens)

    def take_back(self, entry: Entry) -> None:
        """The endpoint did not compute the prompt."""
        if self._index is not None and entry.added is not None:
            self._index.take_back(entry.added)
            entry.added = None

    def served(self, entry: Entry, slot: Slot, usage: Usage | None) -> None:
        """``slot`` computed the prompt; it may have told how much of it was there."""
        if self._index is None or entry.blocks is None or entry.added is None:
            return
        if slot != entry.slot:
            self.take_back(entry)
            if self._fleet.holds(slot):
                self.sent_elsewhere(entry, slot)
        elif usage is not None and usage.cached_tokens is not None and usage.prompt_tokens:
            self._told(entry, usage.cached_tokens, usage.prompt_tokens)

    def sent_elsewhere(self, entry: Entry, slot: Slot) -> None:
        """The gateway sent the request to another endpoint than the first of the decision."""
        if self._index is not None and entry.blocks is not None:
            self._tenants.setdefault(slot.row, slot)
            self._index.insert(slot.row, entry.blocks)

    def page_read(self, slot: Slot) -> None:
        """A page may have told the size of the endpoint's cache."""
        if self._tenants.get(slot.row) == slot:
            self._set_capacity(slot)

    def restarted(self, slot: Slot) -> None:
        """The endpoint holds nothing any more."""
        if self._tenants.get(slot.row) == slot:
            self._forget(slot)

    def _blocks_of_prompt(self, question: Question) -> Blocks | None:
        if self._index is None:
            return None
        salt = f"{question.model}\0{question.multiplexed_model_id}" if question.model else ""
        return self._index.blocks(question.prompt, salt.encode("utf-8", "surrogatepass"))

    def _set_capacity(self, slot: Slot) -> None:
        if self._index is not None:
            tokens = self._fleet.kv_blocks[slot.row] * self._fleet.block_size[slot.row]
            if not tokens > 0.0:  # NaN: not said
                tokens = DEFAULT_CACHE_TOKENS
            self._index.set_capacity(slot.row, int(tokens) // self._index.block_tokens)

    def _forget(self, slot: Slot) -> None:
        del self._tenants[slot.row]
        self._trust.pop(slot, None)
        if self._index is not None:
            self._index.forget(slot.row)
            self._fleet.matched_tokens[slot.row] = 0.0

    def _told(self, entry: Entry, cached: int, of: int) -> None:
        """Compare shares of the prompt, since own token counts are estimates.

        Where less was there than expected, the rest had been dropped, with all that goes on from there. Where
        that happens again and again the endpoint caches less than is believed, or nothing.
        """
        index, blocks, slot = self._index, entry.blocks, entry.slot
        if index is None or blocks is None or entry.matched <= 0.0 or not self._fleet.holds(slot):
            return
        told = min(1.0, cached / of) * entry.prompt_tokens
        self.expected_tokens += int(entry.matched)
        self.told_tokens += int(told)
        trust = self._trust.get(slot, 1.0)
        trust += _TRUST_GAIN * (min(1.0, told / entry.matched) - trust)
        if told >= _CLEARLY_LESS * entry.matched:
            if trust >= _CLEARLY_LESS:
                self._trust.pop(slot, None)
            elif slot in self._trust:
                self._trust[slot] = trust
            return
        self._trust[slot] = trust if trust > _DISTRUSTED else 0.0
        index.keep_only(slot.row, blocks, int(told))
        index.insert(slot.row, blocks)
