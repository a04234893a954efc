"""The page of the HAProxy that Ray Serve puts in place of its own proxy (``RAY_SERVE_ENABLE_HA_PROXY=1``).

Each application is a backend ``http-<application>``. A request there is a session of the backend, or waits
in its queue. The frontend's sessions are not used: they include the idle connections that a gateway keeps.
The values are those of the moment, not of an export.

The node's Ray page, on another port, has neither a proxy's load nor its queue in this mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from picker.metrics.dialects.dialect import Dialect
from picker.metrics.dialects.ray_serve import HEALTH_PATH, ROUTES_PATH, read_probe
from picker.metrics.pages import family, samples, total
from picker.metrics.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from picker.metrics.pages import Sample

_SESSIONS = b"haproxy_backend_current_sessions"
_QUEUE = b"haproxy_backend_current_queue"
_APPLICATION = "http-"


def matches(page: bytes) -> bool:
    """Whether a HAProxy wrote the page."""
    return b"\nhaproxy_backend_" in page or page.startswith(b"haproxy_backend_")


def read(page: bytes) -> Reading:
    """Sum the applications' requests; without any application nothing is said.

    Which process counted is not told: Serve starts a new one for each change of its configuration.
    """
    running = total(_applications(page, _SESSIONS))
    queue = total(_applications(page, _QUEUE))
    return Reading(load=running + queue, queue=queue, running=running, proxy=True)


def _applications(page: bytes, name: bytes) -> Iterator[Sample]:
    found = samples(family(page, name), name)
    return (sample for sample in found if (sample.label(b"proxy") or "").startswith(_APPLICATION))


HAPROXY = Dialect(
    name="haproxy",
    interval=1.0,
    min_interval=0.2,  # 80 kB each time
    max_lag=0.0,
    matches=matches,
    read=read,
    probes=(ROUTES_PATH, HEALTH_PATH),
    read_probe=read_probe,
)
