"""Steps of the prefix index: hash, match and insert, in a well-filled index."""

from __future__ import annotations

import random
from itertools import count, cycle
from typing import TYPE_CHECKING

import numpy as np

from scorer.prefix import PrefixIndex
from scorer.prefix_hash import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SIZES = (200, 4_000, 220_000, 410_000)
ROWS = (10, 100, 1000)
_MAX_BYTES = 1 << 30
_HELD = 30_000
"""Blocks per row, at most."""
_HELD_BY_ALL = 1_000_000
_SYSTEM_BLOCKS = 8
_TURN_BLOCKS = 30
_MOVED = 0.2
"""Share of second turns that another endpoint gets."""
_SALT = b"llama"


class FilledIndex:
    """Rows whose caches are full of sessions of two turns behind one system prompt."""

    def __init__(self, rows: int) -> None:
        self._rng = np.random.default_rng(rows)
        self.index = PrefixIndex(_MAX_BYTES)
        self.rows = rows
        self.out: NDArray[np.float64] = np.zeros(rows)
        held = min(_HELD, _HELD_BY_ALL // rows)
        moves = random.Random(rows)
        for row in range(rows):
            self.index.set_capacity(row, held)
        for number in range(rows * held // (2 * _TURN_BLOCKS) + 1):
            session = self._ids(2 * _TURN_BLOCKS)
            row = number % rows
            self.index.insert(row, self.index.blocks_of_ids(session[:_TURN_BLOCKS]))
            if moves.random() < _MOVED:
                row = moves.randrange(rows)
            self.index.insert(row, self.index.blocks_of_ids(session))

    def _ids(self, own: int) -> NDArray[np.uint64]:
        system = np.arange(_SYSTEM_BLOCKS, dtype=np.uint64)
        return np.concatenate([system, self._rng.integers(0, 1 << 62, own, dtype=np.uint64)])

    def steps_of(self, size: int) -> list[tuple[str, Callable[[], object]]]:
        """Matching and inserting prompts of a size, and all that a decision needs.

        Rows are full, so what is inserted anew drops as much as it adds.
        """
        index, out = self.index, self.out
        rows = cycle(range(self.rows))
        number = count(1)
        prompt = self._rng.bytes(size)
        known = index.blocks(prompt, _SALT)

        def anew(blocks: Blocks) -> Blocks:
            """The same number of blocks that nobody has seen."""
            return Blocks(blocks.hashes ^ np.uint64(next(number)), blocks.tokens)

        def match() -> bool:
            return index.match(known, out)

        def insert_anew() -> object:
            return index.insert(next(rows), anew(known))

        def insert_again() -> object:
            return index.insert(0, known)

        def all_three() -> object:
            blocks = anew(index.blocks(prompt, _SALT))
            index.match(blocks, out)
            return index.insert(next(rows), blocks)

        index.insert(0, known)
        index.insert(self.rows // 2, known)
        label = f"{size / 1000:g} kB, {self.rows} rows"
        return [
            (f"prefix: match, {label}", match),
            (f"prefix: insert again, {label}", insert_again),
            (f"prefix: insert anew, {label}", insert_anew),
            (f"prefix: hash, match, insert anew, {label}", all_three),
        ]


def prefix_steps() -> list[tuple[str, Callable[[], object]]]:
    """Hashing by size, then everything else by size and number of rows."""
    steps: list[tuple[str, Callable[[], object]]] = []
    hasher = PrefixIndex(_MAX_BYTES)
    for size in SIZES:
        prompt = random.Random(size).randbytes(size)

        def hash_prompt(prompt: bytes = prompt) -> Blocks:
            return hasher.blocks(prompt, _SALT)

        steps.append((f"prefix: hash, {size / 1000:g} kB", hash_prompt))
    for rows in ROWS:
        filled = FilledIndex(rows)
        for size in SIZES:
            steps += filled.steps_of(size)
    return steps
