"""The shapes that filters, scorers and choosers share.

``rows`` are the candidates: row numbers of the fleet's columns, without repetition. Masks and scores
are arrays in the order of ``rows``. None of these functions changes anything, so a decision may be
explained without being made: what has state is told of decisions by its :data:`Sent`. None loops over
the endpoints in Python: at a thousand endpoints a loop costs more than all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from scorer.fleet import Fleet

if TYPE_CHECKING:
    from random import Random

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Scores = NDArray[np.float64]


class Request(Protocol):
    """What choosing knows of a request."""

    @property
    def method(self) -> str:
        """The HTTP method; empty if unknown."""

    @property
    def path(self) -> str:
        """The path without its query; empty if there is none."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, names in lower case."""

    @property
    def model(self) -> str:
        """What is asked of the endpoint; empty if unknown."""

    @property
    def session_id(self) -> str:
        """What the client calls its session; empty if it has none."""

    @property
    def multiplexed_model_id(self) -> str:
        """The adapter or multiplexed model that has to be loaded; empty if there is none."""

    @property
    def prompt_tokens(self) -> int:
        """Estimated length of the prompt; 0 if unknown."""


Filter = Callable[[Fleet, Rows, Request, float], Mask]
"""``(fleet, rows, request, now)``: which candidates may stay."""

Scorer = Callable[[Fleet, Rows, Request, float], Scores | None]
"""``(fleet, rows, request, now)``: a number from 0 to 1 for each candidate, higher is better, never NaN; or
None where it has nothing to say about any of them, which costs less than to say the same of all."""

Sent = Callable[[Fleet, int, Request, float], None]
"""``(fleet, row, request, now)``: the request was sent to the endpoint of that row. For what remembers
(sessions, who got the last cold prompt); whatever it keeps is bounded."""

Mark = Callable[[Fleet, int, Request, float], tuple[str, str] | None]
"""``(fleet, row, request, now)``: a header (its name in lower case, and its value) to be set on the answer
of the request that is sent to the endpoint of that row, or None."""


class Chooser(Protocol):
    """From total scores to an ordered few."""

    def __call__(self, totals: Scores, count: int, rng: Random, prefer: int) -> list[int]:
        """Positions in ``totals``, best first, at least one and at most ``count``.

        ``totals`` is not empty. The candidate at position ``prefer`` (-1: none) wins ties.
        """
