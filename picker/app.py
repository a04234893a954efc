"""Puts the parts together, starts and stops them; owns every task and timer of the process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import secrets
import signal
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from picker.background import Background, Feed
from picker.endpoints.endpoint import EndpointsError
from picker.endpoints.roster import Roster
from picker.extproc.bodies import BodyBudget
from picker.extproc.session import SessionOptions, Surroundings
from picker.inference.surfaces import EVERY_SURFACE, Surfaces
from picker.kube.client import KubeError, connect
from picker.kube.lease import Election, Term, lease_name, own_identity
from picker.membership import KUBERNETES, REMOTE, members, membership, pool_name
from picker.metrics.scraper import ScrapeOptions, Scraper
from picker.objects.file import follow_objects
from picker.objects.kube import follow_pool_objects
from picker.objects.manifest import ObjectsError
from picker.objects.rules import Objects
from picker.observatory import Observatory
from picker.observe import traces
from picker.observe.admin import AdminServer
from picker.observe.auth import AuthError, KubernetesReview, TokenFile
from picker.observe.breakers import BreakerLog
from picker.observe.http import MetricsServer
from picker.observe.http_port import HttpError, Place
from picker.observe.lag import LoopLag
from picker.observe.pool import PoolSeries
from picker.observe.prometheus import Metrics
from picker.observe.requests import RequestSeries
from picker.policy_file import PolicyFileError, follow_policy, log_change, parse_policy
from picker.policy_file import means as policy_means
from picker.routing.clusters import ClusterDraw
from picker.routing.router import Router
from picker.serving.contract import ServingError
from picker.serving.drain import Drain
from picker.serving.health import Health
from picker.serving.http2.transport import Http2Transport
from picker.serving.listening import Address
from picker.serving.options import TransportOptions, message_limit
from picker.serving.tls import ServerTls
from picker.settings import variable
from picker.streams import Streams
from picker.version import own_version
from picker.watchdog import Watchdog
from scorer.fleet import Fleet
from scorer.prefix import PrefixIndex
from scorer.profile import built_in_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from picker.endpoints.endpoint import Endpoint
    from picker.kube.client import KubeClient
    from picker.objects.rules import ObjectSet
    from picker.observe.auth import Middlewares
    from picker.serving.contract import Accept, Transport
    from picker.settings import Settings
    from scorer.fleet import Slot
    from scorer.policy import Policy

log = logging.getLogger(__name__)

FIRST_SCRAPES = 1.0
"""Seconds the start waits for one scrape attempt of every endpoint; without pages it is ready too."""
TICK = 0.5
"""Seconds between two looks of routing at what expires; nothing that it decides hangs on them."""

PROBE = 64 * 1024
"""Bytes of the largest message that the health port takes; the names asked for are short."""
PROBES = 1024 * 1024
"""Bytes of unfinished ones, over all its clients."""


class StartError(Exception):
    """The process cannot start as configured; the message is one line that says what to mend."""


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises StartError."""

    async def serve() -> None:
        await App(settings, asyncio.get_running_loop()).serve()

    _raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())
    return 0


def _raise_file_limit() -> None:
    """Allow as many open files as this process may have: two connections are kept to each endpoint.

    The usual 1,024 are a default for programs that use ``select``.
    """
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems say unlimited and mean less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
        self._clusters = ClusterDraw(self._fleet)
        choices = random.Random()  # noqa: S311 - spreads requests, guards nothing
        self._metrics = Metrics(self._fleet, loop.time)
        self._lag = LoopLag(self._metrics.registry)
        self._router = Router(
            self._fleet,
            built_in_profile(),
            choices,
            fallbacks=settings.fallbacks,
            index=PrefixIndex(settings.index_max),
            replicas=settings.replicas,
            clusters=self._clusters,
        )
        self._policy: Policy | None = None
        self._policy_problem = ""
        """Why the policy file cannot be used as it is now."""
        self._roster: Roster | None = None
        self._policy_means = policy_means(choices, _session_key(settings))
        self._objects = Objects(random.Random())  # noqa: S311 - spreads requests, guards nothing
        self._health = Health()

    async def serve(self) -> None:
        """Start everything, serve, drain, stop."""
        settings = self._settings
        scraper = self._scraper()
        streams = self._streams()
        self._tell_more(streams)
        transport = self._transport(streams)
        drain = Drain(self._health, transport, delay=settings.drain_delay, timeout=settings.drain_timeout)
        stop = _stop_signal(self._loop, drain)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(Watchdog(self._loop, settings.watchdog))
            kube = await self._connect(stack)
            feeds = self._feeds(scraper, streams, kube)
            for feed in feeds:
                stack.push_async_callback(feed.close)
            streams.traces = _traces(stack)
            tasks = await stack.enter_async_context(Background())
            for feed in feeds:
                if not feed.remote:
                    await _start(feed)
            port = await self._open_ports(stack, transport, _http_auth(settings, kube))
            if not await _wait_for_servers(feeds, stop):
                return
            for feed in feeds:
                feed.begin()
                tasks.keep_running(feed.name, feed.follow)
            # Only now: a gateway whose picker was restarted is back within milliseconds.
            await transport.start()
            tasks.keep_running("scraping", scraper.run)
            tasks.keep_running("event loop's lag", self._lag.sample)
            tasks.keep_running("expiry", self._expire)
            await scraper.first_attempts(FIRST_SCRAPES)
            # What is there now stays: no full collection has to look at it, which took 30 ms each time.
            gc.collect()
            gc.freeze()
            election = self._election(kube)
            self._health.set_ready(True)
            if election is not None:
                tasks.keep_running("leader election", election.run)
            log.info("ready", extra={"fields": {"endpoints": len(self._fleet), "grpc_port": port}})
            await stop.wait()
            log.info("draining", extra={"fields": {"streams": transport.streams_open}})
            await drain.run(None if election is None else election.hand_over())

    async def _connect(self, stack: contextlib.AsyncExitStack) -> KubeClient | None:
        """The client of the Kubernetes API where the settings need one. Raises StartError."""
        needs = [name for name in KUBERNETES if getattr(self._settings, name) is not None]
        if self._settings.http_auth == "kubernetes":
            needs.append("http_auth")
        if not needs:
            return None
        try:
            client = await connect()
        except KubeError as error:
            raise StartError(f"{variable(needs[0])}: {error}") from None
        stack.push_async_callback(client.close)
        return client

    def _election(self, kube: KubeClient | None) -> Election | None:
        settings = self._settings
        service = settings.service.service if settings.service else None
        pool = settings.pool or service or settings.ray_service or settings.ray_cluster
        if kube is None or pool is None or not settings.leader_election:
            return None
        self._health.set_leading(False)
        return Election(
            kube,
            lease_name(pool),
            own_identity(),
            changed=self._health.set_leading,
            random=random.Random(),  # noqa: S311 - spreads requests over time, guards nothing
            clock=self._loop.time,
            sleep=asyncio.sleep,
            term=Term(),
        )

    async def _open_ports(
        self, stack: contextlib.AsyncExitStack, transport: Transport, http_auth: Middlewares
    ) -> int:
        """Take every port before anything is said or served; returns ext_proc's. Raises StartError."""
        settings = self._settings
        probes = self._serving(
            None, TransportOptions(self._address("health_port"), PROBE, max_unfinished=PROBES)
        )
        metrics_server = MetricsServer(
            Place(settings.bind, settings.metrics_port),
            self._metrics,
            ready=lambda: self._health.serving,
            middlewares=http_auth,
        )
        try:
            port = transport.bind()
            stack.push_async_callback(transport.stop, 0)
            await probes.start()
            stack.push_async_callback(probes.stop, 0)
            await metrics_server.start()
            stack.push_async_callback(metrics_server.stop)
            if settings.admin:
                admin = self._admin_server(http_auth)
                await admin.start()
                stack.push_async_callback(admin.stop)
        except (ServingError, HttpError) as error:
            raise StartError(str(error)) from None
        return port

    def _admin_server(self, http_auth: Middlewares) -> AdminServer:
        settings = self._settings
        place = Place(
            settings.admin_bind, settings.admin_port, variable("admin_bind"), variable("admin_port")
        )
        observatory = Observatory(
            self._fleet,
            self._router,
            self._metrics,
            self._loop.time,
            policy=lambda: (self._policy_name(), self._policy_problem),
            name_of=self._name_of,
            resolve=self._objects.resolve,
            weights=lambda: self._clusters.weights,
        )
        return AdminServer(place, observatory, middlewares=http_auth)

    def _policy_name(self) -> str:
        settings = self._settings
        if settings.config_file is not None:
            return str(settings.config_file)
        return variable("config_text") if settings.config_text is not None else "built in"

    def _name_of(self, address: str) -> str:
        """What the source of members calls an endpoint."""
        slot = self._fleet.slot_of(address)
        if slot is None or self._roster is None or slot not in self._roster.endpoints:
            return ""
        return self._roster.endpoints[slot].name

    def _complain(self, problem: str) -> None:
        self._policy_problem = problem

    def _feeds(self, scraper: Scraper, streams: Streams, kube: KubeClient | None) -> list[Feed[Any]]:
        """What comes from outside and changes while we run, by the setting that names it."""
        settings = self._settings
        named = membership(settings)
        source, weights = members(settings, kube)
        roster = self._roster = self._make_roster(scraper)
        feeds: list[Feed[Any]] = [Feed(named, source.sets, roster.apply, remote=named in REMOTE)]
        if weights is not None:
            remote = settings.http_route is not None  # those of a RayService come with its endpoints
            feeds.append(Feed("weights of clusters", weights, self._clusters.set_weights, remote=remote))
        if settings.objects_file is not None:
            follow = partial(follow_objects, settings.objects_file)
            feeds.append(Feed("objects_file", follow, self._apply_objects))
        elif settings.pool is not None and kube is not None:
            follow_pool = partial(follow_pool_objects, kube, settings.pool)
            feeds.append(Feed("objects of the pool", follow_pool, self._apply_objects, remote=True))
        apply_policy = partial(self._apply_policy, streams)
        if settings.config_file is not None:
            follow_file = partial(
                follow_policy, settings.config_file, self._policy_means, on_complaint=self._complain
            )
            feeds.append(Feed("config_file", follow_file, apply_policy))
        elif settings.config_text is not None:
            apply_policy(self._given_policy(settings.config_text))
        return feeds

    def _given_policy(self, text: str) -> Policy:
        try:
            return parse_policy(text.encode(), variable("config_text"), self._policy_means)
        except PolicyFileError as error:
            raise StartError(str(error)) from None

    def _scraper(self) -> Scraper:
        settings = self._settings
        options = ScrapeOptions(
            dialect=settings.metrics_dialect,
            interval=settings.metrics_interval,
            idle_interval=settings.metrics_idle_interval,
            path=settings.metrics_path,
        )
        return Scraper(
            self._fleet,
            options,
            on_page=self._router.page_read,
            on_restart=self._router.restarted,
            on_scrape=self._metrics.scraped,
            random=random.Random(),  # noqa: S311 - spreads requests over time, guards nothing
            clock=self._loop.time,
        )

    def _make_roster(self, scraper: Scraper) -> Roster:
        def removed(slot: Slot, _endpoint: Endpoint) -> None:
            scraper.forget(slot)

        # Routing takes note of a whole change at its next question or tick, once and not per endpoint.
        return Roster(self._fleet, on_added=scraper.watch, on_removed=removed, on_changed=scraper.watch)

    def _streams(self) -> Streams:
        settings = self._settings
        return Streams(
            routing=self._router,
            observer=self._metrics,
            loop=self._loop,
            options=SessionOptions(
                max_body=settings.max_body,
                strict_bodies=settings.strict_bodies,
                read_usage=settings.read_usage,
                echo_served=settings.echo_served,
            ),
            budget=BodyBudget(settings.max_buffered),
            decision_timeout=settings.decision_timeout,
            surroundings=Surroundings(
                resolve=self._objects.resolve, new_request_id=lambda: str(uuid.uuid4())
            ),
        )

    def _tell_more(self, streams: Streams) -> None:
        """Put on the metrics page what is beyond the picker's own counts."""
        fleet, objects = self._fleet, self._objects
        requests = RequestSeries(
            fleet,
            knows=lambda model: objects.names(model) or fleet.names_model(model),
            rewrite_of=objects.rewrite_of,
        )
        pool = PoolSeries(
            fleet,
            self._router,
            streams,
            pool=pool_name(self._settings),
            version=own_version(),
            weights=lambda: self._clusters.weights,
            ready=lambda: self._health.serving,
        )
        streams.requests = requests
        self._metrics.registry.register(requests)
        self._metrics.registry.register(pool)

    def _transport(self, streams: Streams) -> Transport:
        settings = self._settings
        tls = ServerTls(settings.cert_path, settings.client_ca) if settings.secure_serving else None
        options = TransportOptions(
            address=self._address("grpc_port"),
            max_message=message_limit(settings.max_body),
            tls=tls,
            max_unfinished=settings.max_buffered,
        )
        return self._serving(streams.accept, options)

    def _serving(self, accept: Accept | None, options: TransportOptions) -> Transport:
        """What serves a port: ext_proc and health, or health alone."""
        if self._settings.transport == "grpcio":
            from picker.serving.grpcio import GrpcioTransport  # noqa: PLC0415 - 20 MB and 0.2 s

            return GrpcioTransport(accept, self._health, options)
        return Http2Transport(accept, self._health, options)

    def _address(self, name: str) -> Address:
        return Address(self._settings.bind or "", getattr(self._settings, name), variable(name))

    def _apply_policy(self, streams: Streams, policy: Policy) -> None:
        """Choose by it from the next request on. Prompts are compared in blocks of one size for good."""
        router, settings, old = self._router, self._settings, self._policy
        log_change(old, policy)
        if old is None:
            router.compare_by(PrefixIndex(settings.index_max, block_tokens=policy.block_tokens))
        self._policy = policy
        router.profile, router.saturation = policy.profile, policy.saturation
        clusters = self._clusters
        clusters.spill, clusters.sticky = policy.clusters.spill, policy.clusters.sticky
        clusters.pin(dict(policy.clusters.weights))
        router.wanted = policy.endpoints or 1 + settings.fallbacks
        surfaces = EVERY_SURFACE if policy.parsers is None else Surfaces(policy.parsers)
        streams.options = replace(streams.options, surfaces=surfaces)

    def _apply_objects(self, objects: ObjectSet) -> None:
        self._objects.replace(objects)
        counts = {"rewrites": len(objects.rewrites), "objectives": len(objects.objectives)}
        log.info("objects in force", extra={"fields": counts})

    async def _expire(self) -> None:
        breakers = BreakerLog(self._fleet)
        while True:
            await asyncio.sleep(TICK)
            self._router.tick(self._loop.time())
            breakers.look()


async def _start(feed: Feed[Any]) -> None:
    """Have what there is to start with. Raises StartError."""
    try:
        await feed.fetch_first()
    except (EndpointsError, ObjectsError, PolicyFileError) as error:
        raise StartError(f"{variable(feed.name)}: {error}") from None


def _traces(stack: contextlib.AsyncExitStack) -> traces.Traces | None:
    """Spans of decisions, where OpenTelemetry's variables ask for them. Raises StartError."""
    if not traces.wanted():
        return None
    try:
        started = traces.start()
    except traces.TracesError as error:
        raise StartError(str(error)) from None
    # In a thread, as it waits for the collector to have the last of them.
    stack.push_async_callback(asyncio.to_thread, started.close)
    log.info("traces of decisions are sent")
    return started


def _http_auth(settings: Settings, kube: KubeClient | None) -> Middlewares:
    """What asks who reads the HTTP ports. Raises StartError."""
    kind, _, file = settings.http_auth.partition(":")
    try:
        if kind == "token":
            return (TokenFile(Path(file)).check,)
    except AuthError as error:
        raise StartError(f"{variable('http_auth')}: {error}") from None
    return (KubernetesReview(kube).check,) if kind == "kubernetes" and kube is not None else ()


def _session_key(settings: Settings) -> bytes:
    """What signs session tokens: without a setting one that no other replica knows, nor the next start."""
    if settings.session_key is None:
        return secrets.token_bytes()
    return settings.session_key.get_secret_value().encode()


async def _wait_for_servers(feeds: list[Feed[Any]], stop: asyncio.Event) -> bool:
    """Have what other servers tell first, however long that takes; False if the process is to stop instead.

    Until then the process lives, so that it is not restarted for what another one lacks, and is not ready.
    """
    remote = [feed.fetch_first() for feed in feeds if feed.remote]
    if not remote:
        return True
    first: asyncio.Future[Any] = asyncio.gather(*remote)
    stopped: asyncio.Future[Any] = asyncio.create_task(stop.wait())
    await asyncio.wait({first, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if first.done():
        first.result()
        return True
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return False


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
