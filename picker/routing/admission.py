"""Whether the pool has room for requests that may be shed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scorer.contract import Rows
    from scorer.fleet import Fleet
    from scorer.saturation import Saturation


def saturated(fleet: Fleet, rows: Rows, now: float, saturation: Saturation) -> bool:
    """Whether the endpoints' mean saturation is 1 or more."""
    return bool(saturation(fleet, rows, now).mean() >= 1.0)
