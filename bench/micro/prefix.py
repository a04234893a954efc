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

SIZES = (200, 220_000, 410_000)
ROWS = (10, 100, 1000)
_MAX_BYTES = 1 << 30
_HELD = 30_000
"""Blocks per row, at most."""
_HELD_BY_ALL = 1_000_000
_SYSTEM_BYTES = 2048
_TURN_BLOCKS = 30
_MOVED = 0.2
"""Share of second turns that another endpoint gets."""
_SALT = b"llama"


class FilledIndex:
    """Rows whose caches are full of sessions of two turns behind one system prompt."""

    def __init__(self, rows: int) -> None:
        self._random = np.random.default_rng(rows)
        self._rows = rows
        self._index = PrefixIndex(_MAX_BYTES)
        self._out: NDArray[np.float64] = np.zeros(rows)
        self._system_text = self._random.bytes(_SYSTEM_BYTES)
        self._system = self._index.blocks(self._system_text, _SALT).hashes
        self._anew = count(1)
        held = min(_HELD, _HELD_BY_ALL // rows)
        moves = random.Random(rows)
        for row in range(rows):
            self._index.set_capacity(row, held)
        for number in range(rows * held // (2 * _TURN_BLOCKS) + rows):
            own = self._random.integers(0, 1 << 62, 2 * _TURN_BLOCKS, dtype=np.uint64)
            session = np.concatenate([self._system, own])
            row = number % rows
            self._index.insert(row, Blocks(session[:-_TURN_BLOCKS], 0))
            if moves.random() < _MOVED:
                row = moves.randrange(rows)
            self._index.insert(row, Blocks(session, 0))

    def steps_of(self, size: int) -> list[tuple[str, Callable[[], object]]]:
        """Matching a prompt that two rows hold, and of which all hold the beginning; inserting new ones.

        Rows are full, so what is inserted drops as much as it adds.
        """
        index, out = self._index, self._out
        prompt = (self._system_text + self._random.bytes(size))[:size]
        known = index.blocks(prompt, _SALT)
        holding = (0, self._rows // 2)
        others = cycle([row for row in range(self._rows) if row not in holding])
        for row in holding:
            index.insert(row, known)

        def match() -> bool:
            return index.match(known, out)

        def insert() -> object:
            return index.insert(next(others), self._unseen(known))

        def all_three() -> object:
            blocks = index.blocks(prompt, _SALT)
            index.match(blocks, out)
            return index.insert(next(others), self._unseen(blocks))

        label = f"{size / 1000:g} kB, {self._rows} rows"
        return [
            (f"prefix: match, {label}", match),
            (f"prefix: insert, {label}", insert),
            (f"prefix: hash, match, insert, {label}", all_three),
        ]

    def _unseen(self, blocks: Blocks) -> Blocks:
        """The same with other hashes beyond the system prompt."""
        hashes = blocks.hashes.copy()
        hashes[len(self._system) :] ^= np.uint64(next(self._anew))
        return Blocks(hashes, blocks.tokens)


def prefix_steps() -> list[tuple[str, Callable[[], object]]]:
    """Hashing by size, then everything else by size and number of rows."""
    steps: list[tuple[str, Callable[[], object]]] = []
    index = PrefixIndex(_MAX_BYTES)
    for size in SIZES:
        prompt = random.Random(size).randbytes(size)

        def hash_prompt(prompt: bytes = prompt) -> Blocks:
            return index.blocks(prompt, _SALT)

        steps.append((f"prefix: hash, {size / 1000:g} kB", hash_prompt))
    for rows in ROWS:
        filled = FilledIndex(rows)
        for size in SIZES:
            steps += filled.steps_of(size)
    return steps
