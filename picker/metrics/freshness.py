"""Learning what time a page speaks of from when its values change."""

from __future__ import annotations

_SHORT_GAP = 2.5
"""Seconds between two fetches of which the second is taken for the time of what it shows."""


class Freshness:
    """The page time of one endpoint.

    A Ray node serves what its processes exported last, up to ``max_lag`` seconds ago, and the page
    does not say when that was. But a page whose marker differs from the one before was exported since
    the fetch before, so it is about as new as its own fetch; one with the same marker is the old export
    once more and speaks of the same time as before. Where values are counted as the page is written
    (``max_lag`` 0) the page time is the time it was asked for. After a longer time without a fetch, as
    there is for an endpoint that rests, a page that differs may be about as old as the fetch before.
    """

    __slots__ = ("_asked", "_changed", "_marker", "_max_lag")

    def __init__(self, max_lag: float) -> None:
        self._max_lag = max_lag
        self._marker: int | None = None
        self._changed = self._asked = 0.0

    def page_time(self, marker: int, sent: float) -> float:
        """The time that a page asked for at ``sent`` speaks of; never older than ``max_lag``.

        Of the first page it is not known when it was exported: it is taken to be as old as it can be,
        since taking it for new would hide from it what was sent in the meantime.
        """
        if self._marker is None:
            self._changed = sent - self._max_lag
        elif marker != self._marker:
            self._changed = sent if sent - self._asked <= _SHORT_GAP else self._asked
        self._marker, self._asked = marker, sent
        return max(self._changed, sent - self._max_lag)
