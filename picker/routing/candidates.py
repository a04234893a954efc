"""Who may be chosen at all: the endpoints of the pool, and those of the gateway's subset."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scorer.contract import Rows
    from scorer.fleet import Fleet

_SUBSETS_KEPT = 32
"""A gateway sends few distinct subsets (one per route or upgrade step), each with many requests."""


class Candidates:
    """Rows of the endpoints that are in the pool and in the subset, kept until the pool changes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = -1
        self._all: Rows = np.empty(0, dtype=np.intp)
        self._by_host: dict[str, list[int]] = {}
        self._by_subset: dict[tuple[str, ...], Rows] = {}

    def rows(self, subset: tuple[str, ...] | None) -> Rows:
        """Candidates for one request; ``None`` is no restriction, an empty subset allows nobody.

        An entry with a port means that endpoint, one without means every port of that IP. Entries
        that match nothing are ignored. Reference pickers differ here (some ignore the port); the
        endpoint picker protocol says ``ip:port``.
        """
        if self._version != self._fleet.version:
            self._refresh()
        if subset is None:
            return self._all
        known = self._by_subset.get(subset)
        if known is None:
            if len(self._by_subset) >= _SUBSETS_KEPT:
                del self._by_subset[next(iter(self._by_subset))]
            known = self._by_subset[subset] = self._resolve(subset)
        return known

    def _refresh(self) -> None:
        fleet = self._fleet
        self._version = fleet.version
        self._all = fleet.alive.nonzero()[0]
        self._by_subset.clear()
        self._by_host.clear()
        for row in self._all.tolist():
            host, port = _split(fleet.addresses[row])
            self._by_host.setdefault(host, []).append(row)
            self._by_host.setdefault(f"[{host}]:{port}", []).append(row)

    def _resolve(self, subset: tuple[str, ...]) -> Rows:
        found: set[int] = set()
        for entry in subset:
            host, port = _split(entry)
            found.update(self._by_host.get(f"[{host}]:{port}" if port else host, ()))
        return np.array(sorted(found), dtype=np.intp)


def _split(entry: str) -> tuple[str, str]:
    """Host in a canonical spelling, and port ("" if there is none).

    Takes ``1.2.3.4``, ``1.2.3.4:80``, ``[::1]:80``, ``[::1]`` and ``::1``.
    """
    entry = entry.strip()
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    else:
        host, port = entry, ""
    try:
        host = ip_address(host).compressed
    except ValueError:
        host = host.lower()
    return host, port
