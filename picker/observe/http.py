"""The HTTP port: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for whoever restarts us."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from picker.observe.http_port import HttpPort, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.registry import Collector

    from picker.observe.auth import Middlewares
    from picker.observe.prometheus import Metrics

_END = b"# EOF\n"


class MetricsServer:
    """Serves ``metrics`` at ``place``.

    ``ready`` is asked for each ``/readyz``. ``/healthz`` says no more than that the event loop turns.
    """

    def __init__(
        self, place: Place, metrics: Metrics, ready: Callable[[], bool], *, middlewares: Middlewares = ()
    ) -> None:
        self._http = HttpPort(place)
        self._registry = metrics.registry
        self._ready = ready
        self._middlewares = middlewares

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._http.port

    async def start(self) -> None:
        """Open the port. Raises :class:`picker.observe.http_port.HttpError`."""
        app = web.Application(middlewares=self._middlewares)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        await self._http.start(app)

    async def stop(self) -> None:
        """Close the port. Idempotent."""
        await self._http.stop()

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is not one
            encode, content_type = choose_encoder("")
        body = await _page(self._registry, encode)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not ready\n")


async def _page(registry: CollectorRegistry, encode: Callable[[Collector], bytes]) -> bytes:
    """The whole page, written family by family so that streams get their turn in between.

    All numbers are taken before the first is written.
    """
    parts = []
    for family in list(registry.collect()):
        parts.append(encode(_Family(family)).removesuffix(_END))
        await asyncio.sleep(0)
    if encode(_Family()):  # OpenMetrics, where even an empty page has an end
        parts.append(_END)
    return b"".join(parts)


class _Family:
    """A registry of one family, or none."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """What an encoder asks for."""
        return iter(self._families)
