"""What is kept of each decision to say later why it was made. Nothing is formatted until it is asked for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from picker.routing.clusters import Turn
from picker.routing.decision import Refusal
from scorer.profile import Choice, Dropped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from picker.inference.question import Question

MOST_DECISIONS = 2_000
MOST_BYTES = 16 << 20
"""Bounds of what is kept: beyond a hundred endpoints the second one binds."""
_OVERHEAD = 1_024
"""Bytes of a record without its arrays."""
_LONGEST_TEXT = 256
"""Characters kept of what a client wrote."""


@dataclass(slots=True)
class Asked:
    """What a decision was about; texts are the client's own, cut off."""

    method: str
    path: str
    model: str
    request_id: str
    prompt_tokens: int
    priority: int

    @classmethod
    def of(cls, question: Question) -> Asked:
        """Of a question, without its prompt."""
        return cls(
            question.method[:_LONGEST_TEXT],
            question.path[:_LONGEST_TEXT],
            question.model[:_LONGEST_TEXT],
            question.headers.get("x-request-id", "")[:_LONGEST_TEXT],
            question.prompt_tokens,
            question.priority,
        )


@dataclass(slots=True)
class Explained:
    """A decision at the time ``at``: ``endpoints`` in order of preference, or why it was refused.

    ``choice`` is what the profile made of those that the ladder left, None where it did not come to that
    (nobody there, shed, or ``simplest``: drawn among all). ``dropped`` are those that the ladder took out
    before. ``matched_tokens`` of the prompt are believed to be at the first endpoint. ``draws`` are the
    random numbers that were used, ``unsure`` whether the choice was random for want of pages.
    """

    at: float
    asked: Asked
    endpoints: tuple[str, ...] = ()
    refusal: Refusal | None = None
    choice: Choice | None = None
    addresses: tuple[str, ...] | list[str] = ()
    ladder: tuple[Dropped, ...] = ()
    matched_tokens: float = 0.0
    draws: tuple[float, ...] = ()
    unsure: bool = False
    simplest: bool = False
    number: int = -1
    """Among all that were ever kept."""
    replaced: bool = False
    """Another decision for the same request took its place."""
    turn: Turn | None = None
    """Which cluster was drawn; None: it did not come to that."""

    def dropped(self) -> dict[str, list[str]]:
        """Who was taken out, by the rung of the ladder or the filter that did."""
        filters = self.choice.dropped if self.choice is not None else ()
        return {
            name: [self.addresses[row] for row in rows.tolist()] for name, rows in (*self.ladder, *filters)
        }

    def scores(self) -> dict[str, dict[str, float]]:
        """Each candidate's total and unweighted scores by scorer, best total first."""
        return self.choice.explain() if self.choice is not None else {}

    def weights(self) -> dict[str, float]:
        """What each scorer's score is multiplied by."""
        scorers = self.choice.scorers if self.choice is not None else ()
        return {weighted.name: weighted.weight for weighted in scorers}

    @property
    def nbytes(self) -> int:
        """About how much memory it takes, arrays and addresses shared with others counted in full."""
        choice = self.choice
        size = _OVERHEAD + 8 * len(self.addresses) + 32 * len(self.draws)
        if choice is not None:
            size += choice.totals.nbytes * (2 + len(choice.parts))
        for _, rows in self.ladder:
            size += rows.nbytes
        return size


class Recent:
    """The last decisions, oldest first; bounded by their number and by their memory."""

    def __init__(self, most: int = MOST_DECISIONS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: deque[tuple[Explained, int]] = deque()
        self._count = 0
        self.nbytes = 0

    def add(self, explained: Explained) -> None:
        """Keep one more, and as many of the others as fit."""
        explained.number = self._count
        self._count += 1
        size = explained.nbytes
        self._kept.append((explained, size))
        self.nbytes += size
        while len(self._kept) > self._most or self.nbytes > self._most_bytes:
            self.nbytes -= self._kept.popleft()[1]

    def numbered(self, number: int) -> Explained | None:
        """The decision of a number; None if it is no longer kept."""
        place = number - (self._count - len(self._kept))
        return self._kept[place][0] if 0 <= place < len(self._kept) else None

    def __len__(self) -> int:
        return len(self._kept)

    def __reversed__(self) -> Iterator[Explained]:
        return (explained for explained, _ in reversed(self._kept))

    def __iter__(self) -> Iterator[Explained]:
        return (explained for explained, _ in self._kept)
