"""Puts the parts together, starts and stops them; owns every task and timer of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from typing import TYPE_CHECKING

from picker.endpoints.file import EndpointsError, FileSource
from picker.endpoints.fixed import FixedSource
from picker.endpoints.roster import Roster
from picker.extproc.bodies import BodyBudget
from picker.extproc.session import SessionOptions
from picker.metrics.scraper import ScrapeOptions, Scraper
from picker.observe.http import HttpError, MetricsServer
from picker.observe.prometheus import Metrics
from picker.routing.router import Router
from picker.serving.contract import ServingError
from picker.serving.drain import Drain
from picker.serving.grpcio import GrpcioTransport, TransportOptions, message_limit
from picker.serving.health import Health, HealthServer
from picker.serving.listening import Address
from picker.serving.tls import ServerTls
from picker.settings import variable
from picker.streams import Streams
from scorer.fleet import Fleet
from scorer.profile import built_in_profile

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Self

    from picker.endpoints.endpoint import Endpoint, Source
    from picker.settings import Settings
    from scorer.fleet import Slot

log = logging.getLogger(__name__)

FIRST_SCRAPES = 1.0
"""Seconds the start waits for one scrape attempt of every endpoint; without pages it is ready too."""
TICK = 0.5
"""Seconds between two looks of routing at what expires; nothing that it decides hangs on them."""
RESTART_AFTER = 1.0
"""Seconds until a background task that failed is started again."""


class StartError(Exception):
    """The process cannot start as configured; the message is one line that says what to mend."""


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises StartError."""

    async def serve() -> None:
        await App(settings, asyncio.get_running_loop()).serve()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class App:
    """One picker process."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._fleet = Fleet()
        self._metrics = Metrics(self._fleet, loop.time)
        self._router = Router(
            self._fleet,
            built_in_profile(),
            random.Random(),  # noqa: S311 - spreads requests, guards nothing
            fallbacks=settings.fallbacks,
        )
        self._health = Health()

    async def serve(self) -> None:
        """Start everything, serve, drain, stop."""
        settings = self._settings
        scraper = self._scraper()
        roster = self._roster(scraper)
        transport = self._transport()
        health_server = HealthServer(self._health, self._address("health_port"))
        metrics_server = MetricsServer(
            settings.bind, settings.metrics_port, self._metrics, ready=lambda: self._health.serving
        )
        drain = Drain(self._health, transport, delay=settings.drain_delay, timeout=settings.drain_timeout)
        stop = _stop_signal(self._loop, drain)
        async with contextlib.AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(_Background())
            sets = self._source().sets()
            first = await self._first_set(sets)

            async def follow_membership() -> None:
                nonlocal sets
                try:
                    async for endpoints in sets:
                        roster.apply(endpoints)
                finally:
                    await sets.aclose()
                    sets = self._source().sets()  # what it begins with, should it be started again

            try:
                port = transport.bind()
                stack.push_async_callback(transport.stop, 0)
                await health_server.start()
                stack.push_async_callback(health_server.stop)
                await metrics_server.start()
                stack.push_async_callback(metrics_server.stop)
            except (ServingError, HttpError) as error:
                raise StartError(str(error)) from None
            roster.apply(first)
            # Only now: a gateway whose picker was restarted is back within milliseconds.
            await transport.start()
            tasks.keep_running("membership", follow_membership)
            tasks.keep_running("scraping", scraper.run)
            tasks.keep_running("expiry", self._expire)
            await scraper.first_attempts(FIRST_SCRAPES)
            self._health.set_ready(True)
            log.info("ready", extra={"fields": {"endpoints": len(self._fleet), "grpc_port": port}})
            await stop.wait()
            log.info("draining", extra={"fields": {"streams": transport.streams_open}})
            await drain.run()

    def _scraper(self) -> Scraper:
        settings = self._settings
        options = ScrapeOptions(
            dialect=settings.metrics_dialect, interval=settings.metrics_interval, path=settings.metrics_path
        )
        return Scraper(
            self._fleet,
            options,
            on_page=self._router.page_read,
            on_scrape=self._metrics.scraped,
            random=random.Random(),  # noqa: S311 - spreads requests over time, guards nothing
            clock=self._loop.time,
        )

    def _roster(self, scraper: Scraper) -> Roster:
        def removed(slot: Slot, _endpoint: Endpoint) -> None:
            scraper.forget(slot)

        # Routing takes note of a whole change at its next question or tick, once and not per endpoint.
        return Roster(self._fleet, on_added=scraper.watch, on_removed=removed, on_changed=scraper.watch)

    def _transport(self) -> GrpcioTransport:
        settings = self._settings
        streams = Streams(
            routing=self._router,
            observer=self._metrics,
            loop=self._loop,
            options=SessionOptions(max_body=settings.max_body, strict_bodies=settings.strict_bodies),
            budget=BodyBudget(settings.max_buffered),
            decision_timeout=settings.decision_timeout,
        )
        tls = ServerTls(cert_path=settings.cert_path) if settings.secure_serving else None
        options = TransportOptions(
            address=self._address("grpc_port"), max_message=message_limit(settings.max_body), tls=tls
        )
        return GrpcioTransport(streams.accept, self._health, options)

    def _address(self, name: str) -> Address:
        return Address(self._settings.bind or "", getattr(self._settings, name), variable(name))

    def _source(self) -> Source:
        settings = self._settings
        if settings.endpoints_file is not None:
            return FileSource(settings.endpoints_file, metrics_target_port=settings.metrics_target_port)
        return FixedSource(settings.endpoints or (), metrics_target_port=settings.metrics_target_port)

    async def _first_set(self, sets: AsyncGenerator[tuple[Endpoint, ...], None]) -> tuple[Endpoint, ...]:
        try:
            return await anext(sets)
        except EndpointsError as error:
            named = "endpoints" if self._settings.endpoints_file is None else "endpoints_file"
            raise StartError(f"{variable(named)}: {error}") from None

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._router.tick(self._loop.time())


def _stop_signal(loop: asyncio.AbstractEventLoop, drain: Drain) -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; a second one cuts the drain short."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            drain.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


class _Background:
    """Tasks that run as long as the process: one that fails is logged and started again."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep_running(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` until the end of the process."""
        self._tasks.add(asyncio.create_task(self._run(name, work), name=name))

    async def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                log.exception(
                    "a background task failed and is started again", extra={"fields": {"task": name}}
                )
            await asyncio.sleep(RESTART_AFTER)
