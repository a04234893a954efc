"""One log line when an endpoint is taken out for failing, and one when it is back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scorer.fleet import Fleet, Slot

log = logging.getLogger(__name__)


class BreakerLog:
    """Compares the fleet's breakers with what they were at the last look.

    Routing itself says nothing: it decides, and the same code runs in replays. Between two looks an
    endpoint may have gone out and come back; then there is nothing to say.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._out: dict[Slot, str] = {}

    def look(self) -> None:
        """Log what changed."""
        fleet = self._fleet
        rows = np.flatnonzero(fleet.breaker_open)
        if not len(rows) and not self._out:
            return
        now = {fleet.slot_at(row): fleet.addresses[row] for row in rows.tolist()}
        for slot, address in now.items():
            if slot not in self._out:
                log.warning(
                    "endpoint is taken out: it fails while others do not",
                    extra={"fields": {"endpoint": address}},
                )
        for slot, address in self._out.items():
            if slot not in now and fleet.holds(slot):
                log.info("endpoint is back", extra={"fields": {"endpoint": address}})
        self._out = now
