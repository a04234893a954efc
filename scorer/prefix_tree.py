"""A radix tree of hashed prompts, kept in columns: which holders have which pieces of which prompts.

A *piece* is a run of consecutive blocks that the same holders have: it begins where two prompts part,
or where one holder has less than another. Its edge is its blocks' cumulative hashes, 8 bytes each, as one
``bytes``: comparing a prompt with a piece is one ``memcmp`` and no loop. A piece is found by its first hash,
which, being cumulative, tells the whole path to it. A holder that has a piece has all pieces above it.

A *claim* says that a holder has a piece. The claims of a holder form a ring in the order of their last use.
Both are rows of ``array`` columns and not objects: a third of the memory, and nothing for the garbage
collector to walk through. Row 0 of the pieces is the root, above all first blocks; it has no edge.

Lengths and depths here are in bytes of hashes, 8 per block.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

HASH_BYTES = 8
ROOT = 0
_SHARED = -1
_BYTES_OBJECT = 48
"""What a ``bytes`` takes beside its content: 33 bytes, and rounding by the allocator."""
_PIECE_BYTES = 8 + 5 * 4
_CLAIM_BYTES = 8 + 4 * 4
"""The columns of a row, those of its bucket apart."""
_INITIAL_BUCKETS = 8


class Buckets:
    """Rows of a table, found by hash: chained in buckets, which are split one at a time.

    Linear hashing (Litwin, 1980): a table of a million rows never stops to be rebuilt.
    """

    def __init__(self, hash_of: Callable[[int], int]) -> None:
        self._hash_of = hash_of
        self._heads = array("i", [0] * _INITIAL_BUCKETS)
        self._mask = _INITIAL_BUCKETS - 1
        self._count = 0
        self.following = array("i", [0])
        """The next row of the same bucket, 0 at its end. Rows that are in no bucket may use it."""

    def first(self, hashed: int) -> int:
        """The first row of the bucket where a row with this hash has to be."""
        return self._heads[self._bucket(hashed)]

    def add(self, row: int) -> None:
        """Make a row findable by what it hashes to now."""
        bucket = self._bucket(self._hash_of(row))
        self.following[row] = self._heads[bucket]
        self._heads[bucket] = row
        self._count += 1
        if self._count > len(self._heads):
            self._split()

    def remove(self, row: int) -> None:
        """The row is no longer found. It must hash to what it did when it was added."""
        bucket = self._bucket(self._hash_of(row))
        following = self.following
        at = self._heads[bucket]
        if at == row:
            self._heads[bucket] = following[row]
        else:
            while following[at] != row:
                at = following[at]
            following[at] = following[row]
        self._count -= 1

    @property
    def nbytes(self) -> int:
        """Memory of the buckets' heads and chains."""
        return (len(self._heads) + len(self.following)) * self._heads.itemsize

    def _bucket(self, hashed: int) -> int:
        bucket = hashed & self._mask
        return bucket if bucket < len(self._heads) else bucket & (self._mask >> 1)

    def _split(self) -> None:
        """One more bucket, which takes about half of the rows of another."""
        new = len(self._heads)
        if new > self._mask:
            self._mask = 2 * self._mask + 1
        row = self._heads[new & (self._mask >> 1)]
        self._heads[new & (self._mask >> 1)] = 0
        self._heads.append(0)
        while row:
            after = self.following[row]
            bucket = self._bucket(self._hash_of(row))
            self.following[row] = self._heads[bucket]
            self._heads[bucket] = row
            row = after


class Claims:
    """Who has which piece: one row per claim, and per holder a ring of its claims by last use.

    The row a holder's ring begins and ends with is the holder's own: it claims nothing. ``newer`` of it
    is the claim unused for longest.
    """

    def __init__(self) -> None:
        self.piece = array("i", [0])
        self.holder = array("i", [0])
        self.used_at = array("q", [0])
        self.older = array("i", [0])
        self.newer = array("i", [0])
        self._buckets = Buckets(self._hash)
        self._free = 0

    def new_ring(self, holder: int) -> int:
        """The row of a ring with no claims yet."""
        row = self._row()
        self.piece[row], self.holder[row] = ROOT, holder
        self.older[row] = self.newer[row] = row
        return row

    def end_ring(self, ring: int) -> None:
        """Give an empty ring's row back."""
        self._give_back(ring)

    def add(self, piece: int, holder: int, used_at: int, after: int) -> int:
        """A claim, in the ring next after ``after``, on the newer side."""
        row = self._row()
        self.piece[row], self.holder[row], self.used_at[row] = piece, holder, used_at
        self._buckets.add(row)
        self._link(row, after)
        return row

    def remove(self, row: int) -> None:
        """The holder has the piece no more."""
        self._buckets.remove(row)
        self._unlink(row)
        self._give_back(row)

    def use(self, row: int, ring: int, now: int) -> None:
        """It is the newest of its ring."""
        self.used_at[row] = now
        if self.older[ring] != row:
            self._unlink(row)
            self._link(row, self.older[ring])

    def find(self, piece: int, holder: int) -> int:
        """The row of a claim that is there."""
        row = self._buckets.first(_claim_hash(piece, holder))
        while self.piece[row] != piece or self.holder[row] != holder:
            row = self._buckets.following[row]
            if not row:
                raise KeyError((piece, holder))
        return row

    @property
    def nbytes(self) -> int:
        """Memory of all rows, whether in use or free for the next."""
        return len(self.piece) * _CLAIM_BYTES + self._buckets.nbytes

    def _hash(self, row: int) -> int:
        return _claim_hash(self.piece[row], self.holder[row])

    def _link(self, row: int, after: int) -> None:
        newer = self.newer[after]
        self.older[row], self.newer[row] = after, newer
        self.newer[after] = self.older[newer] = row

    def _unlink(self, row: int) -> None:
        older, newer = self.older[row], self.newer[row]
        self.newer[older], self.older[newer] = newer, older

    def _row(self) -> int:
        row = self._free
        if row:
            self._free = self._buckets.following[row]
            return row
        for column in (
            self.piece,
            self.holder,
            self.used_at,
            self.older,
            self.newer,
            self._buckets.following,
        ):
            column.append(0)
        return len(self.piece) - 1

    def _give_back(self, row: int) -> None:
        self._buckets.following[row] = self._free
        self._free = row


def _claim_hash(piece: int, holder: int) -> int:
    hashed = piece * 0x9E3779B1 + holder * 0x85EBCA77
    return hashed ^ hashed >> 15


class Pieces:
    """The tree: edges, who has them, and how they hang together."""

    def __init__(self) -> None:
        self.edges: list[bytes] = [b""]
        self.parent = array("i", [0])
        self.child = array("i", [0])
        """The first of its children, 0 if it has none; they are linked by ``left`` and ``right``."""
        self.left = array("i", [0])
        self.right = array("i", [0])
        self._sole = array("i", [_SHARED])
        self._shared: dict[int, int] = {}
        self._shared_bits = 0
        self._buckets = Buckets(self._hash)
        self._free = 0
        self._edge_bytes = 0

    def find(self, key: bytes) -> int:
        """The piece that begins with this cumulative hash; 0 if there is none."""
        edges = self.edges
        row = self._buckets.first(hash(key))
        while row and not edges[row].startswith(key):
            row = self._buckets.following[row]
        return row

    def path(self, hashes: bytes) -> tuple[list[int], int]:
        """The pieces along a prompt, from its beginning, and how far it is known.

        The last piece may go on where the prompt ends or goes another way.
        """
        edges = self.edges
        path: list[int] = []
        depth, end = 0, len(hashes)
        while depth < end:
            piece = self.find(hashes[depth : depth + HASH_BYTES])
            if not piece:
                break
            path.append(piece)
            edge = edges[piece]
            if not hashes.startswith(edge, depth):
                depth += _common(edge, hashes[depth : depth + len(edge)])
                break
            depth += len(edge)
        return path, depth

    def add(self, edge: bytes, parent: int, holder: int) -> int:
        """A piece under ``parent`` that one holder has."""
        row = self._row()
        self.edges[row] = edge
        self._edge_bytes += len(edge) + _BYTES_OBJECT
        self._sole[row] = holder
        self._hang(row, parent)
        self._buckets.add(row)
        return row

    def remove(self, row: int) -> None:
        """A piece without children."""
        self._buckets.remove(row)
        self._unhang(row)
        self._edge_bytes -= len(self.edges[row]) + _BYTES_OBJECT
        self.edges[row] = b""
        self._buckets.following[row] = self._free
        self._free = row

    def resize(self, row: int, edge: bytes) -> None:
        """Another edge with the same beginning, for a piece without children."""
        self._edge_bytes += len(edge) - len(self.edges[row])
        self.edges[row] = edge

    def split(self, row: int, length: int) -> int:
        """Cut off the beginning of a piece as a piece of its own, with the same holders.

        The end stays what ``row`` means, so that children and claims need no visit.
        """
        edge, parent = self.edges[row], self.parent[row]
        self._buckets.remove(row)
        self._unhang(row)
        self.edges[row] = edge[length:]
        self._edge_bytes -= length
        head = self.add(edge[:length], parent, self._sole[row])
        if row in self._shared:
            self._set_shared(head, self._shared[row])
        self._hang(row, head)
        self._buckets.add(row)
        return head

    def holders(self, row: int) -> int:
        """Who has it, as a set of bits: bit h stands for holder h."""
        sole = self._sole[row]
        return self._shared[row] if sole == _SHARED else 1 << sole

    def is_only_of(self, row: int, holder: int) -> bool:
        """Whether this holder has it and no other."""
        return self._sole[row] == holder

    def has(self, row: int, holder: int) -> bool:
        """Whether this holder, among others or not, has it."""
        sole = self._sole[row]
        return self._shared[row] >> holder & 1 == 1 if sole == _SHARED else sole == holder

    def share(self, row: int, holder: int) -> None:
        """One more holder."""
        self._set_shared(row, self.holders(row) | 1 << holder)
        self._sole[row] = _SHARED

    def release(self, row: int, holder: int) -> bool:
        """One holder less. Whether there is any left."""
        if self._sole[row] == holder:
            return False
        left = self._shared[row] & ~(1 << holder)
        if left & (left - 1):
            self._set_shared(row, left)
        else:
            self._shared_bits -= sys.getsizeof(self._shared.pop(row))
            self._sole[row] = left.bit_length() - 1
        return True

    @property
    def nbytes(self) -> int:
        """Memory of all rows, whether in use or free for the next, of edges and of sets of holders."""
        columns = len(self.edges) * _PIECE_BYTES + self._buckets.nbytes
        return columns + self._edge_bytes + self._shared_bits + sys.getsizeof(self._shared)

    def _hash(self, row: int) -> int:
        # Python's own, of which the key is drawn anew in each process: the cumulative hashes are no secret,
        # and a client could make prompts that all fall into one bucket of theirs.
        return hash(self.edges[row][:HASH_BYTES])

    def _set_shared(self, row: int, holders: int) -> None:
        old = self._shared.get(row)
        if old is not None:
            self._shared_bits -= sys.getsizeof(old)
        self._shared_bits += sys.getsizeof(holders)
        self._shared[row] = holders

    def _hang(self, row: int, parent: int) -> None:
        sibling = self.child[parent]
        self.parent[row], self.left[row], self.right[row] = parent, 0, sibling
        self.child[parent] = row
        if sibling:
            self.left[sibling] = row

    def _unhang(self, row: int) -> None:
        left, right = self.left[row], self.right[row]
        if left:
            self.right[left] = right
        else:
            self.child[self.parent[row]] = right
        if right:
            self.left[right] = left

    def _row(self) -> int:
        row = self._free
        if row:
            self._free = self._buckets.following[row]
            self.child[row] = 0
            return row
        self.edges.append(b"")
        for column in (self.parent, self.child, self.left, self.right, self._sole, self._buckets.following):
            column.append(0)
        return len(self.edges) - 1


def _common(edge: bytes, hashes: bytes) -> int:
    """How much of their beginnings two unequal runs of hashes have in common."""
    shorter = min(len(edge), len(hashes))
    a, b = np.frombuffer(edge[:shorter], np.uint64), np.frombuffer(hashes[:shorter], np.uint64)
    same = a == b
    return shorter if same.all() else int(same.argmin()) * HASH_BYTES
