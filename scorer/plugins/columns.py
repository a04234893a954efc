"""What several plugins need: columns with gaps, and what labels say, looked at once per change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from scorer.scorers import IGNORED_AGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from scorer.contract import Mask, Rows
    from scorer.fleet import Fleet

T = TypeVar("T")


class PerVersion(Generic[T]):
    """Something made of a fleet's addresses and labels, kept until they change.

    Making it may loop over the endpoints: they change once in a while, and requests come all the time.
    """

    __slots__ = ("_fleet", "_make", "_value", "_version")

    def __init__(self, make: Callable[[Fleet], T]) -> None:
        self._make = make
        self._fleet: Fleet | None = None
        self._version = -1
        self._value: T | None = None

    def of(self, fleet: Fleet) -> T:
        """The thing for the fleet as it is now."""
        if self._value is None or self._fleet is not fleet or self._version != fleet.version:
            self._value = self._make(fleet)
            self._fleet, self._version = fleet, fleet.version
        return self._value


def labelled(fleet: Fleet, admits: Callable[[Mapping[str, str]], bool]) -> Mask:
    """For each row whether its labels are such."""
    mask = np.zeros(fleet.capacity, dtype=np.bool_)
    for row in fleet.alive.nonzero()[0].tolist():
        mask[row] = admits(fleet.labels[row])
    return mask


def said(column: NDArray[np.float64], fleet: Fleet, rows: Rows, now: float) -> NDArray[np.float64] | None:
    """A scraped column for the candidates; None if nobody says anything.

    Who does not say, or whose page is too old to mean anything, counts as the mean of those that do: no news
    is neither good nor bad.
    """
    values = column[rows]
    known = (values >= 0.0) & (fleet.fetched_at[rows] > now - IGNORED_AGE)  # NaN >= 0 is False
    count = int(np.count_nonzero(known))
    if count == len(rows):
        return values
    if count == 0:
        return None
    return np.where(known, values, values[known].mean())


def own_requests(fleet: Fleet, rows: Rows) -> NDArray[np.float64]:
    """Requests that we sent there and that are still running, as far as we know."""
    requests: NDArray[np.float64] = fleet.own[rows] + fleet.untracked[rows]
    return requests
