"""Chunks of a request body that are held until the decision, within bounds of memory."""

from __future__ import annotations

from typing import Final

CHUNK_OVERHEAD: Final = 256
"""Bytes a held chunk costs beside its own: the message around it, its view, its place in a list."""


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

    ``limit`` bounds the body's own bytes; the budget is charged with what the chunks really cost,
    so that a body of one-byte chunks is bounded too.
    """

    __slots__ = ("_budget", "_chunks", "_limit", "_taken", "size")

    def __init__(self, limit: int, budget: BodyBudget) -> None:
        self._budget = budget
        self._chunks: list[memoryview] = []
        self._limit = limit
        self._taken = 0
        self.size = 0

    def hold(self, chunk: memoryview) -> bool:
        """Keep a chunk. False: it is beyond a bound, and something has to be decided at once.

        It is kept all the same, since no byte may be lost; it is then outside the budget, for as
        long as a decision takes that does not wait for anything.
        """
        self._chunks.append(chunk)
        self.size += len(chunk)
        cost = len(chunk) + CHUNK_OVERHEAD
        if self.size > self._limit or not self._budget.take(cost):
            return False
        self._taken += cost
        return True

    def whole(self) -> bytes | memoryview:
        """All of it in one piece; one chunk is given without a copy."""
        if len(self._chunks) == 1:
            return self._chunks[0]
        return b"".join(self._chunks)

    def release(self) -> list[memoryview]:
        """Hand the chunks over and give the budget back."""
        chunks, self._chunks = self._chunks, []
        self._budget.give(self._taken)
        self._taken = self.size = 0
        return chunks


def split(chunk: memoryview, limit: int) -> list[memoryview]:
    """A chunk in pieces of at most ``limit`` bytes, the same memory."""
    if len(chunk) <= limit:
        return [chunk]
    return [chunk[start : start + limit] for start in range(0, len(chunk), limit)]
