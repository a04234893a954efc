"""What a simulated model server has in its KV cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class KvCache:
    """The KV cache: blocks that running sequences hold, tokens that only one has, and what is left over.

    All amounts are tokens.
    """

    def __init__(self, capacity: int, block: int) -> None:
        self.capacity = capacity
        self.block = block
        self.used = 0
        """By running sequences."""
        self._held: dict[int, int] = {}
        """By how many each block is held."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks that nobody holds, least recently used first."""

    def match(self, blocks: Sequence[int]) -> int:
        """How many of the first blocks are there."""
        held, idle = self._held, self._idle
        for place, block in enumerate(blocks):
            if block not in held and block not in idle:
                return place
        return len(blocks)

    @property
    def room(self) -> int:
        """Tokens that running sequences could take."""
        return self.capacity - self.used

    def take(self, blocks: Sequence[int], private: int, *, spare: int = 0) -> bool:
        """Hold ``blocks``, which are there, and ``private`` tokens; False if not ``spare`` would be left."""
        held, idle = self._held, self._idle
        idle_ones = sum(block not in held for block in blocks)
        if self.used + idle_ones * self.block + private + spare > self.capacity:
            return False
        for block in blocks:
            if block in held:
                held[block] += 1
            else:
                del idle[block]
                held[block] = 1
        self.used += idle_ones * self.block
        self.grow(private)
        return True

    def grow(self, tokens: int) -> None:
        """More private tokens; the caller has seen to it that there is room."""
        self.used += tokens
        idle = self._idle
        for _ in range(min(len(idle), -((self.capacity - self.used - len(idle) * self.block) // self.block))):
            idle.popitem(last=False)

    def register(self, blocks: Sequence[int]) -> None:
        """Make private tokens known as blocks, held once more; what is there already is held instead."""
        held, idle = self._held, self._idle
        for block in blocks:
            if block in held:
                held[block] += 1
                self.used -= self.block
            else:
                idle.pop(block, None)
                held[block] = 1

    def release(self, blocks: Sequence[int], private: int) -> None:
        """Hold no more. The end of a prompt is forgotten before its beginning."""
        held, idle = self._held, self._idle
        for block in reversed(blocks):
            if held[block] > 1:
                held[block] -= 1
            else:
                del held[block]
                idle[block] = None
                self.used -= self.block
        self.used -= private
