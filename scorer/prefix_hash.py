"""From a prompt to one number per prefix: the names under which blocks are indexed.

A prompt is cut into blocks of equal length; ``hashes[i]`` stands for everything up to and including
block i, so one number tells a whole prefix, and equal numbers at i mean equal prompts up to there.

The formula, all of it modulo 2^64, with ``w`` the block's bytes as little-endian words of 64 bits::

    a = sum_k M_k (w_k xor (w_k >> 32))      b = sum_k L_k w_k
    digest_i = mix(C (a xor (a >> 32)) + b + seed + i G)
    hash_i = digest_0 + ... + digest_i

The sums are multilinear hashes (Lemire and Kaser, "Strongly universal string hashing is fast", 2014):
one multiplication per word and one pass of numpy, where a hash called for each block would cost a
Python call each. In a product modulo 2^64 the high bits of a word reach only the high bits of the sum;
folding them down gives each of them at least 33 bits to move in ``a``, and ``b`` sees the words in
another way. ``mix`` is the finaliser of splitmix64 (Stafford's variant 13), a bijection. ``i G`` (G the
golden ratio, as in splitmix64) makes a block's place count, so that the running sum depends on the order.
``seed`` is BLAKE2b of the salt. Multipliers come from splitmix64 with a fixed start: every process,
on every machine, gives the same numbers, so that replicas without shared state agree.

How sure it is: two prefixes that were not made to coincide do so with a probability near 2^-64, so with a
million blocks indexed one look-up in 10^13 finds another prompt's. The multipliers are public, hence a client
can make prompts that coincide: sums can be solved for. What it gains: the picker believes that an
endpoint holds its prefix, and sends it there; the engine, which has hashes of its own, computes what it
does not hold. No prompt is ever answered from this index. Which bucket of a table a hash falls into
is another question, see ``Pieces`` in :mod:`scorer.prefix_tree`.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

WORD_BYTES = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# As arrays without dimensions: numpy takes half the time of a scalar to combine them with small arrays.
_U27, _U30, _U31, _U32 = (np.array(bits, dtype=np.uint64) for bits in (27, 30, 31, 32))
_U_MIX_1, _U_MIX_2, _U_GOLDEN = (np.array(odd, dtype=np.uint64) for odd in (_MIX_1, _MIX_2, _GOLDEN))
_WORD = np.dtype("<u8")


class Blocks(NamedTuple):
    """A prompt's whole blocks; what is left at its end, shorter than a block, is not among them."""

    hashes: Hashes
    """``hashes[i]`` stands for the first i + 1 blocks."""
    tokens: int
    """How many tokens all the blocks stand for."""


NO_BLOCKS = Blocks(np.empty(0, dtype=np.uint64), 0)


class BlockHasher:
    """Hashes prompts in blocks of ``block_bytes``, a multiple of 8."""

    def __init__(self, block_bytes: int) -> None:
        if block_bytes <= 0 or block_bytes % WORD_BYTES:
            raise ValueError(f"a block must be a positive multiple of {WORD_BYTES} bytes, not {block_bytes}")
        self._block_bytes = block_bytes
        self._words = block_bytes // WORD_BYTES
        multipliers = _splitmix64(2 * self._words) | np.uint64(1)
        self._folded, self._plain = multipliers[: self._words], multipliers[self._words :]

    def of_bytes(self, prompt: bytes | bytearray | memoryview, salt: bytes) -> Hashes:
        """One hash for each whole block of the prompt."""
        count = len(prompt) // self._block_bytes
        words = np.frombuffer(prompt, _WORD, count * self._words).reshape(count, self._words)
        folded = words >> _U32
        folded ^= words
        sums: Hashes = np.einsum("ij,j->i", folded, self._folded)  # multiplies and adds in one pass
        sums ^= sums >> _U32
        sums *= _U_MIX_1
        sums += np.einsum("ij,j->i", words, self._plain)
        return _chained(sums, salt)


def hashes_of_ids(ids: Hashes, salt: bytes) -> Hashes:
    """One hash for each block of which only an identifier is known: a trace's, or a tokenizer's digest."""
    return _chained(ids.astype(np.uint64), salt)


def _chained(digests: Hashes, salt: bytes) -> Hashes:
    """Cumulative hashes of the blocks with these digests, which are used up."""
    places = np.arange(len(digests), dtype=np.uint64)
    places *= _U_GOLDEN
    places += _seed(salt)
    digests += places
    _mix(digests)
    return np.add.accumulate(digests)


def _mix(values: Hashes) -> None:
    """In place: every bit of a value comes to depend on every other."""
    values ^= values >> _U30
    values *= _U_MIX_1
    values ^= values >> _U27
    values *= _U_MIX_2
    values ^= values >> _U31


@lru_cache(maxsize=1024)
def _seed(salt: bytes) -> Hashes:
    return np.frombuffer(blake2b(salt, digest_size=8).digest(), _WORD).reshape(())


def _splitmix64(count: int) -> Hashes:
    """The first numbers of splitmix64 (Steele, Lea and Flood, 2014) from state 0."""
    states = np.arange(1, count + 1, dtype=np.uint64) * _U_GOLDEN
    _mix(states)
    return states
