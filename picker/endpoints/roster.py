"""Brings each new set of endpoints into the fleet and tells the other rooms what changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from picker.endpoints.endpoint import Endpoint
    from scorer.fleet import Fleet, Slot

    Listener = Callable[[Slot, Endpoint], None]

log = logging.getLogger(__name__)

MOST_LINES = 20
"""Log lines about one new set; beyond that only numbers are told."""


class Roster:
    """The endpoints of the pool by slot; the only writer of the fleet's identity columns.

    ``on_added(slot, endpoint)`` follows the addition to the fleet and ``on_removed`` the removal
    from it. ``on_changed`` says that the metrics of an endpoint are elsewhere now. Labels and routes are
    the fleet's, so of new ones nobody is told. Routes are written only when they are new: what an endpoint
    itself says of its routes afterwards is newer.
    """

    def __init__(
        self, fleet: Fleet, *, on_added: Listener, on_removed: Listener, on_changed: Listener
    ) -> None:
        self._fleet = fleet
        self._on_added = on_added
        self._on_removed = on_removed
        self._on_changed = on_changed
        self._endpoints: dict[Slot, Endpoint] = {}

    @property
    def endpoints(self) -> Mapping[Slot, Endpoint]:
        """Who is in the pool now."""
        return self._endpoints

    def apply(self, endpoints: Iterable[Endpoint]) -> None:
        """Make the pool what ``endpoints`` says. Of a repeated address the first one counts."""
        wanted: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            wanted.setdefault(endpoint.address, endpoint)
        lines = _Lines()
        for slot, endpoint in list(self._endpoints.items()):
            if endpoint.address not in wanted:
                self._remove(slot)
                lines.add("endpoint removed", endpoint)
        for address, endpoint in wanted.items():
            slot_there = self._fleet.slot_of(address)
            if slot_there is None:
                self._add(endpoint)
                lines.add("endpoint added", endpoint)
            elif endpoint != self._endpoints[slot_there]:
                self._change(slot_there, endpoint)
                lines.add("endpoint changed", endpoint)
        lines.end(len(wanted))

    def _add(self, endpoint: Endpoint) -> None:
        slot = self._fleet.add(endpoint.address, endpoint.labels)
        self._endpoints[slot] = endpoint
        if endpoint.routes is not None:
            self._fleet.set_routes(slot, endpoint.routes)
        self._on_added(slot, endpoint)

    def _remove(self, slot: Slot) -> None:
        self._fleet.remove(slot)
        self._on_removed(slot, self._endpoints.pop(slot))

    def _change(self, slot: Slot, endpoint: Endpoint) -> None:
        before = self._endpoints[slot]
        self._endpoints[slot] = endpoint
        if endpoint.labels != before.labels:
            self._fleet.relabel(slot, endpoint.labels)
        if endpoint.routes is not None and endpoint.routes != before.routes:
            self._fleet.set_routes(slot, endpoint.routes)
        if endpoint.metrics_address != before.metrics_address:
            self._on_changed(slot, endpoint)


class _Lines:
    """One log line per change, and one with the numbers instead of the many of a mass change."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._written = 0

    def add(self, message: str, endpoint: Endpoint) -> None:
        self._counts[message] = self._counts.get(message, 0) + 1
        if self._written < MOST_LINES:
            self._written += 1
            fields = {
                "endpoint": endpoint.address,
                "metrics": endpoint.metrics_address,
                "name": endpoint.name,
            }
            log.info(message, extra={"fields": fields})

    def end(self, size: int) -> None:
        if sum(self._counts.values()) > self._written:
            counts = {message.removeprefix("endpoint "): count for message, count in self._counts.items()}
            log.info("endpoints changed", extra={"fields": {**counts, "endpoints": size}})
