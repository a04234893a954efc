"""Chunks of a request body: held until the decision within bounds of memory, cut, and spliced."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CHUNK_OVERHEAD: Final = 256
"""Bytes a held chunk costs beside its own: the message around it, its place in a list, its view."""
_NOTHING: Final = memoryview(b"")


class BodyBudget:
    """How much of request bodies the process may hold, for all its streams together."""

    __slots__ = ("_limit", "_used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes taken and not given back."""
        return self._used

    def take(self, size: int) -> bool:
        """Take ``size`` bytes, or nothing if they are not there."""
        if self._used + size > self._limit:
            return False
        self._used += size
        return True

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self._used -= size


class HeldBody:
    """The chunks of one request body, in order, as they came.

    A single chunk is kept as it is. Several are gathered in one piece while they arrive: reading
    needs them so, and joining many megabytes at the end would stall all other streams.

    ``limit`` bounds the body's own bytes; the budget is charged with what the chunks really cost,
    so that a body of one-byte chunks is bounded too.
    """

    __slots__ = ("_budget", "_first", "_gathered", "_limit", "_sizes", "_taken", "size")

    def __init__(self, limit: int, budget: BodyBudget) -> None:
        self._budget = budget
        self._first = _NOTHING
        self._gathered: bytearray | None = None
        self._limit = limit
        self._sizes: list[int] = []
        self._taken = 0
        self.size = 0

    def hold(self, chunk: memoryview) -> bool:
        """Keep a chunk. False: it is beyond a bound, and something has to be decided at once.

        It is kept all the same, since no byte may be lost; it is then outside the budget, for as
        long as a decision takes that does not wait for anything.
        """
        if not self._sizes:
            self._first = chunk
        else:
            if self._gathered is None:
                self._gathered = bytearray(self._first)
                self._first = _NOTHING
            self._gathered += chunk
        self._sizes.append(len(chunk))
        self.size += len(chunk)
        cost = len(chunk) + CHUNK_OVERHEAD
        if self.size > self._limit or not self._budget.take(cost):
            return False
        self._taken += cost
        return True

    def whole(self) -> memoryview | bytearray:
        """All of it in one piece, not copied. No view of it may outlive the next call of ``hold``."""
        return self._first if self._gathered is None else self._gathered

    def release(self) -> list[memoryview]:
        """Hand the chunks over and give the budget back."""
        if not self._sizes:
            return []
        self._budget.give(self._taken)
        sizes, gathered, first = self._sizes, self._gathered, self._first
        self._sizes, self._gathered, self._first = [], None, _NOTHING
        self._taken = self.size = 0
        if gathered is None:
            return [first]
        view = memoryview(gathered)
        ends = accumulate(sizes)
        return [view[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def split(chunk: memoryview, limit: int) -> list[memoryview]:
    """A chunk in pieces of at most ``limit`` bytes, the same memory."""
    if len(chunk) <= limit:
        return [chunk]
    return [chunk[start : start + limit] for start in range(0, len(chunk), limit)]


class Splice(NamedTuple):
    """Bytes ``start`` to ``stop`` of a body are to be replaced by ``text``. There is a byte at ``start``."""

    start: int
    stop: int
    text: bytes

    @property
    def growth(self) -> int:
        """By how many bytes the body becomes longer; negative where it becomes shorter."""
        return len(self.text) - (self.stop - self.start)

    def apply(self, body: memoryview) -> tuple[memoryview, bytes, memoryview]:
        """The new body in segments: none of what stays is copied."""
        return body[: self.start], self.text, body[self.stop :]


Segments = tuple[memoryview | bytes, ...]


def splice_chunks(chunks: Iterable[memoryview], splice: Splice) -> Iterator[Segments]:
    """The chunks with the splice made, each as its segments. One of which nothing stays is left out."""
    position = 0
    for chunk in chunks:
        start, stop = splice.start - position, splice.stop - position
        size = len(chunk)
        position += size
        if start >= size or (stop <= 0 and start < 0):
            yield (chunk,)
        elif start >= 0:
            yield tuple(filter(len, (chunk[:start], splice.text, chunk[stop:])))
        elif stop < size:
            yield (chunk[stop:],)
