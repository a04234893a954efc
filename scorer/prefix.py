"""Which endpoint is believed to hold which prompt prefix in its KV cache.

Nobody tells: the belief is made of own decisions. What was sent to an endpoint it will have computed,
and its cache drops what was unused for longest once it is full. So per row of the fleet there is a set
of blocks of the size of that cache, least recently used out first, and of one prompt the end before the
beginning: a block is of no use without those before it, and engines free theirs in that order too.

How it is kept: as a radix tree of runs of blocks (:mod:`scorer.prefix_tree`), found by cumulative hashes
(:mod:`scorer.prefix_hash`). What belongs together and has one fate is one entry, however long it is: a
session that stays at its endpoint, one; a system prompt that a thousand endpoints hold, one edge with a
set of a thousand bits and a claim for each. A decision therefore costs a few dictionary-like
steps per *piece* of its prompt, most have two to five, and nothing per block but the hash.

What was weighed and not taken:

* A table keyed by (block, row), with the time of last use. Simple and flat, but 16 to 24 bytes for each pair
  at a sensible filling, and matching is a binary search for all rows at once, ten numpy calls for each
  round: measured at 1,600 blocks 190 µs for 100 rows and 790 µs for 1,000, and 105 µs more to look up
  what an insertion has to touch (here 16, 32 and 40 µs); 30 µs for three blocks, and most prompts are short.
* For each block the set of rows, as bits or as a small vector: fast to match, but a hole in memory for
  fleets of 1,000 (125 bytes per block for what mostly is one row), and times of use have no place in it.
* Objects in dictionaries: by their sizes some 450 bytes per piece instead of 116, all of it walked by the
  garbage collector.

Memory: 8 bytes per block, however many rows hold it; 84 per piece; 32 per claim. So a (block, row) pair
takes at most 16 bytes beside its block's hash where prompts bring 8 new blocks (2 kB of text) on average,
and a fraction of one where prefixes are shared. Prompts of a single new block each are the worst: 116
bytes. The bound on all memory holds for them too.

Costs that remain: an engine's eviction is known only as far as it is least-recently-used; a prompt whose
prefix is in many pieces (a session that changed endpoints at every turn) costs about 3 µs per piece;
parting a piece that 1,000 rows hold costs 2 to 3 ms, once for each place where prompts part; an insertion
that has to make room drops about one piece per 3 µs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scorer.prefix_hash import NO_BLOCKS, BlockHasher, Blocks, hashes_of_ids
from scorer.prefix_tree import HASH_BYTES, ROOT, Claims, Pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DEFAULT_CAPACITY = 31_250
"""Blocks of a row whose KV cache's size is unknown; 2 M tokens at 64 a block, as llm-d assumes."""
_NOBODY = -1
_RECLAIMED_AT_ONCE = 8
"""Claims of forgotten rows that each insertion clears away: more than it makes, and some 2 µs each."""
_MADE_ROOM = 64
"""Blocks that the largest row drops at a time when memory runs out."""
_FOLLOWED_AT_MOST = 4096
"""Pieces looked at when what goes on from a prefix is dropped: a millisecond."""


class Added(NamedTuple):
    """What an insertion added, to be taken back if the endpoint never computed it."""

    holder: int
    epoch: int
    blocks: Blocks
    known: int
    """How many of the blocks the row was believed to hold before."""
    at: int
    """Which insertion it was."""


NOTHING_ADDED = Added(_NOBODY, 0, NO_BLOCKS, 0, 0)


class PrefixIndex:
    """Prefixes by row of the fleet. Rows are small numbers, given by :class:`scorer.fleet.Fleet`.

    ``max_bytes`` bounds all memory of the index; when it is reached, the row with the most blocks loses
    those it used least recently. A prompt counts in blocks of ``block_tokens`` tokens, which are taken
    for ``bytes_per_token`` bytes of text each. Prompts shorter than a block are not indexed.
    """

    def __init__(self, max_bytes: int, *, block_tokens: int = 64, bytes_per_token: int = 4) -> None:
        self.block_tokens = block_tokens
        self.pairs = 0
        """(block, row) pairs that can match."""
        self._max_bytes = max_bytes
        self._block_bytes = block_tokens * bytes_per_token
        self._hasher = BlockHasher(self._block_bytes)
        self._pieces = Pieces()
        self._claims = Claims()
        self._insertions = 0
        # By row of the fleet.
        self._holder_of: list[int] = []
        self._capacity: list[int] = []
        # By holder: a row's tenancy, which ends when the row is forgotten.
        self._row_of = np.empty(0, dtype=np.intp)
        self._ring: list[int] = []
        self._blocks: list[int] = []
        self._epoch: list[int] = []
        self._live = 0
        self._forgotten: list[int] = []
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Memory taken by pieces and claims, allocated beforehand or in use."""
        return self._pieces.nbytes + self._claims.nbytes

    def blocks(self, prompt: bytes | bytearray | memoryview, salt: bytes = b"") -> Blocks:
        """The prompt's whole blocks. ``salt`` keeps apart what shares no cache: models, adapters, tenants."""
        if len(prompt) < self._block_bytes:
            return NO_BLOCKS
        hashes = self._hasher.of_bytes(prompt, salt)
        return Blocks(hashes, len(hashes) * self.block_tokens)

    def blocks_of_ids(self, ids: Sequence[int] | NDArray[np.integer], salt: bytes = b"") -> Blocks:
        """Blocks that were cut and named elsewhere, as in published traces: integers from 0 to 2^64 - 1.

        They may name the block or the whole prefix.
        """
        if not len(ids):
            return NO_BLOCKS
        hashes = hashes_of_ids(np.asarray(ids, dtype=np.uint64), salt)
        return Blocks(hashes, len(hashes) * self.block_tokens)

    def match(self, blocks: Blocks, out: NDArray[np.float64]) -> bool:
        """Write how many tokens of the prompt's beginning each row holds; whether any row holds any.

        ``out`` has one place for each row of the fleet.
        """
        out.fill(0.0)
        if not len(blocks.hashes):
            return False
        path, known = self._pieces.path(blocks.hashes.tobytes())
        holding = self._live
        depth = 0
        for piece in path:
            still = holding & self._pieces.holders(piece)
            if depth and still != holding:
                self._write(out, holding ^ still, depth)
            holding = still
            if not holding:
                return depth > 0
            depth += len(self._pieces.edges[piece])
        if holding and path:
            self._write(out, holding, known)
        return bool(path)

    def insert(self, row: int, blocks: Blocks) -> Added:
        """The row is about to compute the prompt, and to hold it. Blocks beyond its capacity are left out."""
        self._room_for(row)
        count = min(len(blocks.hashes), self._capacity[row])
        if not count:
            return NOTHING_ADDED
        self._insertions += 1
        holder = self._holder(row)
        hashes = blocks.hashes[:count].tobytes()
        path, depth = self._path_to(hashes)
        known = self._use(path, holder)
        if depth < len(hashes):
            self._extend(path[-1] if path else ROOT, hashes[depth:], holder)
        self._blocks[holder] += count - known
        self.pairs += count - known
        self._evict(holder, self._blocks[holder] - self._capacity[row])
        self._reclaim(_RECLAIMED_AT_ONCE)
        self._shrink()
        return Added(holder, self._epoch[holder], blocks, known, self._insertions)

    def take_back(self, added: Added) -> None:
        """Undo an insertion, except for what another one used since. Doing it twice does no harm."""
        if added.known >= len(added.blocks.hashes) or self._epoch[added.holder] != added.epoch:
            return
        pieces, claims, holder = self._pieces, self._claims, added.holder
        first_new = added.known * HASH_BYTES
        path, _ = pieces.path(added.blocks.hashes.tobytes())
        end = sum(len(pieces.edges[piece]) for piece in path)
        for piece in reversed(path):
            start = end - len(pieces.edges[piece])
            if end <= first_new:
                return
            if pieces.has(piece, holder):
                claim = claims.find(piece, holder)
                if claims.used_at[claim] != added.at:
                    return
                self._cut(claim, max(first_new - start, 0))
            end = start

    def keep_only(self, row: int, blocks: Blocks, tokens: int) -> None:
        """The row turned out to hold no more than so many tokens of this prompt's beginning.

        What is beyond is dropped, also that of other prompts which go on from there.
        """
        holder = self._holder_of[row] if row < len(self._holder_of) else _NOBODY
        keep = max(tokens, 0) // self.block_tokens
        if holder == _NOBODY or keep >= len(blocks.hashes):
            return
        pieces = self._pieces
        hashes = blocks.hashes[: keep + 1].tobytes()
        path, known = pieces.path(hashes)
        if known < len(hashes) or not pieces.has(path[-1], holder):
            return
        below = self._below(path[-1], holder)
        if below is None:
            self._start_anew(row, Blocks(blocks.hashes[:keep], keep * self.block_tokens))
            return
        for piece in reversed(below):
            self._cut(self._claims.find(piece, holder), 0)
        start = sum(len(pieces.edges[piece]) for piece in path[:-1])
        self._cut(self._claims.find(path[-1], holder), keep * HASH_BYTES - start)

    def set_capacity(self, row: int, blocks: int) -> None:
        """How many blocks of this index the row's KV cache has room for."""
        self._room_for(row)
        self._capacity[row] = max(blocks, 0)
        holder = self._holder_of[row]
        if holder != _NOBODY:
            self._evict(holder, self._blocks[holder] - self._capacity[row])

    def forget(self, row: int) -> None:
        """The row's endpoint was removed, or restarted with an empty cache. Its capacity is unknown again.

        Costs the same however much the row held: its claims are cleared away by later insertions.
        """
        if row >= len(self._holder_of):
            return
        self._capacity[row] = DEFAULT_CAPACITY
        holder = self._holder_of[row]
        if holder == _NOBODY:
            return
        self._holder_of[row] = _NOBODY
        self._live &= ~(1 << holder)
        self._epoch[holder] += 1
        self.pairs -= self._blocks[holder]
        self._forgotten.append(holder)

    def _write(self, out: NDArray[np.float64], holders: int, depth: int) -> None:
        tokens = depth // HASH_BYTES * self.block_tokens
        if not holders & (holders - 1):
            row = self._row_of[holders.bit_length() - 1]
            if row < len(out):
                out[row] = tokens
            return
        octets = holders.to_bytes((holders.bit_length() + 7) // 8, "little")
        bits = np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little")
        rows = self._row_of[bits.nonzero()[0]]
        out[rows[rows < len(out)]] = tokens

    def _room_for(self, row: int) -> None:
        missing = row + 1 - len(self._holder_of)
        if missing > 0:
            self._holder_of.extend([_NOBODY] * missing)
            self._capacity.extend([DEFAULT_CAPACITY] * missing)

    def _holder(self, row: int) -> int:
        """Whose claims the row's are."""
        holder = self._holder_of[row]
        if holder == _NOBODY:
            holder = self._free.pop() if self._free else self._new_holder()
            self._ring[holder] = self._claims.new_ring(holder)
            self._row_of[holder] = row
            self._holder_of[row] = holder
            self._live |= 1 << holder
        return holder

    def _new_holder(self) -> int:
        self._row_of = np.append(self._row_of, 0)
        self._ring.append(0)
        self._blocks.append(0)
        self._epoch.append(0)
        return len(self._ring) - 1

    def _path_to(self, hashes: bytes) -> tuple[list[int], int]:
        """The pieces that the prompt begins with, parted where it leaves them, and how far it is known."""
        path, depth = self._pieces.path(hashes)
        if path:
            last = path[-1]
            ends = sum(len(self._pieces.edges[piece]) for piece in path)
            if ends > depth:
                path[-1] = self._split(last, len(self._pieces.edges[last]) - (ends - depth))
        return path, depth

    def _use(self, path: list[int], holder: int) -> int:
        """The holder has all of the path, its beginning used last. How many blocks of it it had before."""
        pieces, claims, ring, now = self._pieces, self._claims, self._ring[holder], self._insertions
        had = 0
        for piece in reversed(path):
            if pieces.has(piece, holder):
                claims.use(claims.find(piece, holder), ring, now)
                had += len(pieces.edges[piece])
            else:
                pieces.share(piece, holder)
                claims.add(piece, holder, now, after=claims.older[ring])
        return had // HASH_BYTES

    def _extend(self, parent: int, hashes: bytes, holder: int) -> None:
        """Blocks that were unknown, after a path just used. A leaf that nobody else has grows."""
        pieces, claims = self._pieces, self._claims
        if parent != ROOT and pieces.is_only_of(parent, holder) and not pieces.child[parent]:
            pieces.resize(parent, pieces.edges[parent] + hashes)
            return
        newest = self._ring[holder] if parent == ROOT else claims.find(parent, holder)
        claims.add(pieces.add(hashes, parent, holder), holder, self._insertions, after=claims.older[newest])

    def _split(self, piece: int, length: int) -> int:
        """Part a piece; its beginning, which is returned, counts as used just after its end."""
        pieces, claims = self._pieces, self._claims
        head = pieces.split(piece, length)
        holders = pieces.holders(piece)
        while holders:
            holder = holders.bit_length() - 1
            holders ^= 1 << holder
            claim = claims.find(piece, holder)
            claims.add(head, holder, claims.used_at[claim], after=claim)
        return head

    def _cut(self, claim: int, length: int) -> None:
        """Leave a holder only so much of a piece below which it has nothing."""
        pieces, claims = self._pieces, self._claims
        piece, holder = claims.piece[claim], claims.holder[claim]
        edge = pieces.edges[piece]
        lost = (len(edge) - length) // HASH_BYTES
        self._blocks[holder] -= lost
        if self._live >> holder & 1:
            self.pairs -= lost
        if length:
            if pieces.is_only_of(piece, holder):
                pieces.resize(piece, edge[:length])
                return
            self._split(piece, length)
        claims.remove(claim)
        if not pieces.release(piece, holder):
            pieces.remove(piece)

    def _below(self, piece: int, holder: int) -> list[int] | None:
        """The pieces under one that the holder has too, upper ones first; None if that takes too long."""
        pieces = self._pieces
        found: list[int] = []
        ahead = [pieces.child[piece]]
        for _ in range(_FOLLOWED_AT_MOST):
            while ahead and not ahead[-1]:
                ahead.pop()
            if not ahead:
                return found
            at = ahead[-1]
            ahead[-1] = pieces.right[at]
            if pieces.has(at, holder):
                found.append(at)
                ahead.append(pieces.child[at])
        return None

    def _start_anew(self, row: int, blocks: Blocks) -> None:
        capacity = self._capacity[row]
        self.forget(row)
        self._capacity[row] = capacity
        self.insert(row, blocks)

    def _evict(self, holder: int, excess: int) -> None:
        """Drop so many blocks of a holder, those unused for longest first."""
        ring, claims = self._ring[holder], self._claims
        while excess > 0:
            claim = claims.newer[ring]
            length = len(self._pieces.edges[claims.piece[claim]]) // HASH_BYTES
            lost = min(length, excess)
            self._cut(claim, (length - lost) * HASH_BYTES)
            excess -= lost

    def _reclaim(self, most: int) -> None:
        """Clear away claims of rows that were forgotten."""
        for _ in range(most):
            if not self._forgotten:
                return
            holder = self._forgotten[-1]
            ring = self._ring[holder]
            claim = self._claims.newer[ring]
            if claim == ring:
                self._claims.end_ring(ring)
                self._free.append(self._forgotten.pop())
            else:
                self._cut(claim, 0)

    def _shrink(self) -> None:
        """Make room: forgotten rows' claims go first, then what the largest rows used least recently."""
        while self.nbytes > self._max_bytes:
            if self._forgotten:
                self._reclaim(_MADE_ROOM)
                continue
            largest = max(range(len(self._blocks)), key=self._blocks.__getitem__)
            if not self._blocks[largest]:
                return
            self._evict(largest, min(_MADE_ROOM, self._blocks[largest]))
