"""What the scrape loop needs to know about one kind of server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from picker.metrics.reading import ProbeReading, Reading


def _no_probe(_path: str, _status: int, _body: bytes) -> ProbeReading:
    return ProbeReading()


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names one kind of server uses in its page, and how it wants to be asked.

    ``interval`` seconds between pages unless configured, never less than ``min_interval``;
    ``max_lag`` how old (s) the values on a page can be; ``path`` where the page is;
    ``probes`` paths of the traffic address that tell whether it takes requests, asked in order until
    one answer settles it.

    ``matches`` is cheap and true for a page of this kind; ``read`` and ``read_probe`` (of path, status,
    body) take whatever bytes a server sends and never raise.
    """

    name: str
    interval: float
    min_interval: float
    max_lag: float
    matches: Callable[[bytes], bool]
    read: Callable[[bytes], Reading]
    path: str = "/metrics"
    probes: tuple[str, ...] = ()
    read_probe: Callable[[str, int, bytes], ProbeReading] = _no_probe
